"""The interleaved run of ``bench_sparse.py``: every engine answers each query in one process."""

from __future__ import annotations

import gc
import logging
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

log = logging.getLogger("sluice")

DEPTHS = (10, 1000)
PLANNER_DEPTHS = (10, 100, 1000)
ENGINE_CHOICES = ("auto", "blocks", "terms")
PLANNED = ("exact", "exact, blocks", "exact, terms")
PLANNER_ROUNDS = 9
SEISMIC_OVERLAP = 0.999

Searches = dict[str, Callable[[int, int], Any]]


class _Judge:
    """Compares answers with brute force."""

    def __init__(self, truths: dict[str, str]) -> None:
        import numpy as np

        self._best: dict[str, tuple[Any, Any]] = {}
        for fidelity, path in truths.items():
            with np.load(path) as held:
                self._best[fidelity] = (held["rows"], held["scores"])
        self.wrong = self.checked = 0

    def check(self, name: str, place: int, k: int, hits: Any) -> None:
        """Count an answer of ours, as wrong where a row or a score differs."""
        import numpy as np
        from bench_sparse_peers import ENGINES

        rows, scores = self._best[ENGINES[name].files]
        self.checked += 1
        self.wrong += not (
            np.array_equal(hits.rows[0], rows[place, :k])
            and np.array_equal(hits.scores[0], scores[place, :k])
        )

    def overlap(self, name: str, place: int, k: int, answer: Any) -> float:
        """Return the share of the exact best that is among any engine's answer."""
        import numpy as np
        from bench_sparse_peers import ENGINES

        truly = self._best["exact"][0][place, :k]
        truly = truly[truly >= 0]
        return len(np.intersect1d(truly, ENGINES[name].rows(answer))) / max(len(truly), 1)


def timing(
    collection: str, engines: dict[str, str], truths: dict[str, str], kind: str, queries: int,
    rounds: int,
) -> dict[str, Any]:  # fmt: skip
    """Time the engines (name to index) on each query in turn, and check our answers.

    Returns for each k the milliseconds ``[rounds][queries]`` (null where an engine sat out) and the
    overlaps with the exact truth; what the planner's engines take; and how many are wrong.
    """
    from bench_sparse_data import Collection
    from bench_sparse_peers import ENGINES

    source, judge = Collection(Path(collection)), _Judge(truths)
    asked = source.queries(kind, queries)
    count = asked.shape[0]
    searches = {
        name: ENGINES[name].open(source, Path(path), asked) for name, path in engines.items()
    }
    seismic = _fastest_seismic(searches, judge, count)
    # Engines that read the same index would find it warm in the cache after one another.
    contestants = {
        name: search
        for name, search in searches.items()
        if name == seismic or not name.startswith(("seismic", "exact, "))
    }
    planned = {name: searches[name] for name in PLANNED}
    gc.collect()
    gc.disable()
    report: dict[str, Any] = {
        str(k): _interleaved(contestants, judge, count, rounds, k) for k in DEPTHS
    }
    report["planner"] = {str(k): _least(planned, judge, count, k) for k in PLANNER_DEPTHS}
    gc.enable()
    log.info("timed %s, %s queries: %d of our answers", source.folder.name, kind, judge.checked)
    return {**report, "wrong": judge.wrong, "checked": judge.checked}


def _fastest_seismic(searches: Searches, judge: _Judge, count: int) -> str | None:
    """Return the setting with the least time for ten hits among those that overlap enough."""
    found: list[tuple[bool, float, str]] = []
    for name, search in searches.items():
        if name.startswith("seismic"):
            times, overlaps = [], []
            for place in range(count):
                start = time.perf_counter()
                answer = search(place, 10)
                times.append(time.perf_counter() - start)
                overlaps.append(judge.overlap(name, place, 10, answer))
            overlap, seconds = round(statistics.fmean(overlaps), 6), statistics.median(times)
            log.info("%s: overlap %.4f, %.3f ms", name, overlap, 1000 * seconds)
            enough = overlap >= SEISMIC_OVERLAP
            found.append((not enough, seconds if enough else -overlap, name))
    return min(found)[2] if found else None


def _interleaved(
    searches: Searches, judge: _Judge, count: int, rounds: int, k: int,
) -> dict[str, Any]:  # fmt: skip
    import numpy as np
    from bench_sparse_peers import ENGINES, OURS

    rng = np.random.default_rng(3)
    names = list(searches)
    times: dict[str, list[list[float | None]]] = {
        name: [[None] * count for _ in range(rounds)] for name in names
    }
    overlaps: dict[str, list[float]] = {name: [] for name in names}
    for search in searches.values():
        search(0, k)
    for turn in range(rounds):
        for place in range(count):
            answers = {}
            for number in rng.permutation(len(names)):  # no engine always follows the same one
                name = names[number]
                engine = ENGINES[name]
                if place % engine.every != engine.offset:
                    continue
                search = searches[name]
                start = time.perf_counter()
                answers[name] = search(place, k)
                spent = time.perf_counter() - start
                times[name][turn][place] = round(1000 * spent, 5)
            for name, answer in answers.items():
                if name in OURS:
                    judge.check(name, place, k, answer)
                if not turn:
                    overlaps[name].append(judge.overlap(name, place, k, answer))
    return {
        "milliseconds": times,
        "overlap": {name: statistics.fmean(values) for name, values in overlaps.items()},
    }


def _least(searches: Searches, judge: _Judge, count: int, k: int) -> dict[str, list[float]]:
    """Return each engine's least milliseconds for each query, which noise cannot shorten.

    Each goes through all queries before the next does: they read the same index.
    """
    least = {name: [float("inf")] * count for name in searches}
    for _ in range(PLANNER_ROUNDS):
        for name, search in searches.items():
            for place in range(count):
                start = time.perf_counter()
                answer = search(place, k)
                spent = 1000 * (time.perf_counter() - start)
                least[name][place] = min(least[name][place], spent)
                judge.check(name, place, k, answer)
    return least
