"""The autopilot: measures indexes on sampled queries against exact search, and chooses one."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import whole_number
from sluice.indexing.auto.candidates import ArrayVectors, Vectors, vectors_of_rows
from sluice.indexing.auto.trials import Choice, Limits, Trials
from sluice.indexing.checks import Dense, checked_dense
from sluice.indexing.hits import Rows
from sluice.indexing.index import Recipe
from sluice.indexing.storage.exact_scores import Metric, checked_metric

__all__ = ["ArrayVectors", "AutoIndex", "Vectors"]

log = logging.getLogger("sluice")

MEASURED = 50_000  # vectors on which candidates are compared; the chosen ones see all
MOST_QUERIES = 1_000
FEWEST_QUERIES = 64  # below, documents serve as queries too
WITH_DOCUMENTS = 400  # queries then

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class AutoIndex(Recipe):
    """A recipe: the index that meets a target recall within memory and latency.

    ``target_recall`` is the share of the exact ``k`` best that is found, on average. ``max_memory``
    (bytes, or text such as ``"2GB"``) limits what searches keep returning to
    (``Index.resident_bytes``); whole vectors that are only read to rescore may stay on the disk.
    ``max_latency_ms`` limits the median time of one query by itself, on this machine as it is now.

    A ``query_graph`` is a candidate where training queries are known, which link its documents.

    Below ``exact_below`` vectors the choice is ``FlatIndex``, unless that breaks a limit. From
    there on, candidates are measured on at most 50,000 vectors, and the best are built on all of
    them. Their setting (``efSearch``, ``nprobe``, ``depth``) is the smallest whose recall meets the
    target at the lower end of its 95% interval on one half of the queries; the other half then
    checks it, and takes a larger one where it falls short. Of those that meet all limits the
    fastest is chosen; with a latency limit, exact search if it meets it, else the one that builds
    fastest. Where none does, the one with the best recall within memory and latency, else the
    nearest, and a warning names the limits it breaks.
    """

    type_name = "auto"

    def __init__(
        self,
        target_recall: Annotated[
            float, "The share of the exact best hits that must be found."
        ] = 0.98,
        k: Annotated[int, "Hits that the recall is measured at."] = 10,
        max_memory: int | str | None = None,
        max_latency_ms: float | None = None,
        metric: Metric = "ip",
        exact_below: int = 100_000,
        seed: int = 13,
    ) -> None:
        if not 0 < target_recall <= 1:
            raise ConfigError(
                f"target_recall is {target_recall!r}, expected a share above 0, at most 1"
            )
        if max_latency_ms is not None and not 0 < max_latency_ms < math.inf:
            raise ConfigError(
                f"max_latency_ms is {max_latency_ms!r}, expected milliseconds above 0"
            )
        self.metric: Metric = checked_metric(metric)
        self.exact_below = whole_number(exact_below, "exact_below", 0)
        self.seed = whole_number(seed, "seed", 0)
        self.limits = Limits(
            float(target_recall),
            whole_number(k, "k", 1),
            None if max_memory is None else size_in_bytes(max_memory, "max_memory"),
            None if max_latency_ms is None else float(max_latency_ms),
        )

    def choose(
        self,
        vectors: Vectors | Dense,
        queries: Dense | None = None,
        *,
        work: Path | None = None,
        training: Callable[[], Dense] | None = None,
    ) -> Choice:
        """Return the chosen index, filled with all ``vectors`` in their order, and the reasons.

        ``queries`` ``[n, dim]`` should be real ones. Where they are missing, or fewer than 64,
        documents serve as queries too, which may be easier or harder. The table goes to the
        log; it is also in ``index.notes["auto"]``, which is saved with the index. ``work`` is a
        folder for vectors that need not lie in memory (``Index.spool``); the caller removes it
        once the index is saved.

        ``training`` returns other queries, which are not measured with: a ``query_graph`` is then
        tried too, whose documents they link. It is called once, if anything is tried at all.
        """
        source = ArrayVectors(vectors) if isinstance(vectors, np.ndarray) else vectors
        checked = self._checked_queries(source, queries)
        once = None if training is None else cache(training)
        trials = Trials(source, self.limits, self.metric, self.seed, work, once)
        choice = self._choice(trials, checked)
        choice.index.notes["auto"] = choice.as_dict()
        log.info("%s", choice)
        if choice.chosen is not None and choice.chosen.breaks:
            log.warning("auto index: %s", choice.reason)
        return choice

    def _checked_queries(self, source: Vectors, queries: Dense | None) -> Dense | None:
        if queries is None or not len(queries):
            return None
        width = next((chunk.shape[1] for chunk in source if len(chunk)), None)
        checked = checked_dense(queries, width, "queries")
        if len(checked) > MOST_QUERIES:
            rng = np.random.default_rng(self.seed)
            checked = checked[np.sort(rng.choice(len(checked), MOST_QUERIES, replace=False))]
        return checked

    def _choice(self, trials: Trials, queries: Dense | None) -> Choice:
        source = trials.source
        if len(source) < 2:
            return trials.untried(f"exact search: nothing to compare among {len(source)} vectors")
        if len(source) < self.exact_below:
            few = queries if queries is not None else source.sample(FEWEST_QUERIES, self.seed)
            choice = trials.exact(few, self.exact_below)
            if choice.chosen is not None and not choice.chosen.breaks:
                return choice
        size = min(len(source), MEASURED)
        real = 0 if queries is None else len(queries)
        if queries is not None and real >= FEWEST_QUERIES:
            none: Rows = np.full(real, -1, dtype=np.int64)
            part = source.sample(size, self.seed)
            _check_count(part, size)
            return trials.choose(ArrayVectors(part), queries, none, none)
        rng = np.random.default_rng(self.seed)
        rows = np.sort(rng.choice(len(source), size, replace=False))
        part = vectors_of_rows(source, rows)
        _check_count(part, size)
        places = np.sort(rng.choice(size, min(size, WITH_DOCUMENTS - real), replace=False))
        mixed = part[places] if queries is None else np.concatenate([queries, part[places]])
        own = np.concatenate([np.full(real, -1), places])
        own_of_all = np.concatenate([np.full(real, -1), rows[places]])
        choice = trials.choose(ArrayVectors(part), mixed, own, own_of_all)
        choice.reason += (
            f"; {len(places)} of the {len(mixed)} queries were documents (never answers to "
            "themselves), which may be easier or harder than real queries"
        )
        return choice


def _check_count(part: Dense, expected: int) -> None:
    if len(part) != expected:
        raise DataError(f"vectors: read {len(part):,}, but their length is {expected:,}")


def size_in_bytes(size: int | str, name: str) -> int:
    """Return bytes of a number, or of text such as ``500MB``, ``2 GB`` or ``1.5GiB``."""
    if not isinstance(size, str):
        return whole_number(size, name, 1)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", size.lower())
    units = BINARY_UNITS if match and match[3] else UNITS
    if not match or match[2] not in units or float(match[1]) * units[match[2]] < 1:
        raise ConfigError(f"{name} is {size!r}, expected bytes, such as 2GB, 500MB or 1.5GiB")
    return int(float(match[1]) * units[match[2]])
