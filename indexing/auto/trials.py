"""Measures candidates on a sample, then the best on all vectors; what was chosen, and why."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import spelled_bytes
from sluice.encoders.foundation.progress import progress
from sluice.indexing.auto.candidates import Candidate, Judge, Vectors, candidates, lower_bound
from sluice.indexing.checks import Dense
from sluice.indexing.flat.index import FlatIndex
from sluice.indexing.hits import Rows
from sluice.indexing.index import Index
from sluice.indexing.own.graph.query_graph import QueryGraphIndex
from sluice.indexing.storage.exact_scores import Metric


@dataclass(frozen=True, slots=True)
class Limits:
    """What an index has to meet; None means no limit."""

    recall: float
    k: int
    memory: int | None  # bytes
    latency_ms: float | None  # of one query

    def __str__(self) -> str:
        parts = [f"recall@{self.k} {self.recall:g}"]
        if self.memory is not None:
            parts.append(f"memory {spelled_bytes(self.memory)}")
        if self.latency_ms is not None:
            parts.append(f"latency {self.latency_ms:g} ms")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Measured:
    """One index with one setting: a row of the trade-off table.

    ``recall`` is the mean over the queries it was measured on, ``recall_low`` the lower end of its
    one-sided 95% confidence interval. Figures of a sample are extrapolated to the corpus:
    memory and build time in proportion, latency as the type grows, recall as it is.
    """

    name: str
    params: Mapping[str, Any]
    measured_on: int  # vectors
    queries: str  # "choosing" or "held-out"
    recall: float
    recall_low: float
    ms_one: float  # median of a query by itself
    ms_batch: float  # of a query among many
    memory_bytes: int
    build_seconds: float
    exact: bool
    breaks: tuple[str, ...]  # of recall, memory, latency

    @property
    def label(self) -> str:
        """Name and setting, as in a sentence."""
        setting = ", ".join(f"{name}={value}" for name, value in self.params.items())
        return f"{self.name} ({setting})" if setting else self.name


@dataclass(slots=True)
class Choice:
    """The filled index, the table of everything measured, and one sentence why."""

    index: Index
    table: list[Measured]
    chosen: Measured | None  # None where there was nothing to measure
    reason: str
    limits: Limits

    def __str__(self) -> str:
        """Return the table in markdown with the reason under it."""
        k = self.limits.k
        heads = [
            "index",
            "setting",
            "vectors",
            "queries",
            f"recall@{k}",
            "at least",
            "ms/query",
            "ms/query in batches",
            "memory",
            "build",
            "meets",
        ]
        lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|---|" + "---:|" * 6 + "---|"]
        for row in self.table:
            setting = ", ".join(f"{name}={value}" for name, value in row.params.items())
            cells = [
                f"**{row.name}**" if row is self.chosen else row.name,
                setting or "-",
                f"{row.measured_on:,}",
                row.queries,
                f"{row.recall:.4f}",
                f"{row.recall_low:.4f}",
                f"{row.ms_one:.3f}",
                f"{row.ms_batch:.3f}",
                spelled_bytes(row.memory_bytes),
                f"{row.build_seconds:.1f} s",
                "no: " + ", ".join(row.breaks) if row.breaks else "yes",
            ]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join([*lines, "", self.reason])

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the index as JSON values, for manifests."""
        return {
            "chosen": None if self.chosen is None else _json(self.chosen),
            "reason": self.reason,
            "limits": asdict(self.limits),
            "table": [_json(row) for row in self.table],
        }


def _json(row: Measured) -> dict[str, Any]:
    return {**asdict(row), "params": dict(row.params), "breaks": list(row.breaks)}


log = logging.getLogger("sluice")

BUILDS = 3  # kinds built on all vectors, at most, and exact search
SATURATED = 1e-3  # recall that two larger settings must add for more to be tried
HOPELESS = 3.0  # times the latency limit, from which larger settings are not tried
SHOWN = 50_000  # vectors from which building shows its progress

Built = tuple[Index, float]  # with the seconds it took


class Trials:
    """Builds and measures indexes of one corpus against the same limits."""

    def __init__(
        self,
        source: Vectors,
        limits: Limits,
        metric: Metric,
        seed: int,
        work: Path | None = None,
        training: Callable[[], Dense] | None = None,
    ) -> None:
        self.source = source
        self._limits = limits
        self._metric: Metric = metric
        self._seed = seed
        self._training = training  # queries that link a query_graph
        self._work = work  # where indexes of all vectors spool what need not be in memory
        self._table: list[Measured] = []
        self._on_all: dict[str, Built] = {}  # kinds built on all vectors
        self._failed: list[str] = []
        self._flat = Candidate(
            FlatIndex.type_name, FlatIndex.type_name, lambda: FlatIndex(metric), exact=True
        )

    def untried(self, reason: str) -> Choice:
        """Return exact search with nothing measured."""
        return Choice(self._of_all(self._flat)[0], self._table, None, reason, self._limits)

    def exact(self, queries: Dense, below: int) -> Choice:
        """Return exact search over all vectors, with its latency measured."""
        judge = Judge.unanswered(queries, self._limits.k)
        index, _ = self._of_all(self._flat)
        row = self._row(self._flat, {}, self.source, self._of_all(self._flat), judge, judge)
        reason = f"exact search, the default below {below:,} vectors (here {len(self.source):,})"
        return Choice(index, [row], row, reason, self._limits)

    def choose(self, part: Vectors, queries: Dense, own: Rows, own_of_all: Rows) -> Choice:
        """Compare on ``part``, build and tune the best on all vectors, and choose.

        ``own`` and ``own_of_all`` are the queries' own rows in either, -1 for real queries.
        """
        complete = len(part) == len(self.source)
        k, width = self._limits.k, queries.shape[1]
        judge = Judge.exact(part, queries, own, k, self._metric)
        of_all = self._candidates(len(self.source), width)
        best: dict[str, Measured] = {}
        for kind, candidate in self._candidates(len(part), width).items():
            rows = self._compared(candidate, of_all[kind], part, judge.split(self._seed)[0])
            self._table += rows
            if rows:
                best[kind] = min(rows, key=self._rank)
        if not complete:
            judge = Judge.exact(self.source, queries, own_of_all, k, self._metric)
        final: dict[str, Measured] = {}
        for kind in self._worth_building(best):
            leader = min(map(self._rank, final.values()), default=(math.inf,))
            if leader[0] == 0 and leader <= self._rank(best[kind]):
                break  # the rest ranked lower on the sample
            rows = self._tuned(of_all[kind], *judge.split(self._seed))
            self._table += rows
            if rows:
                final[kind] = min(rows, key=self._rank)
                kind = min(final, key=lambda each: self._rank(final[each]))
                if not complete:  # free the memory of what is beaten
                    self._on_all = {kind: self._on_all[kind]}
        if not final:
            return self.untried(f"exact search: {'; '.join(self._failed)}")
        kind = min(final, key=lambda each: self._rank(final[each]))
        index, _ = self._on_all[kind]
        index.default_params = dict(final[kind].params)
        reason = self._reason(final[kind], judge.split(self._seed)[1])
        if isinstance(index, QueryGraphIndex):
            reason += f"; its documents are linked by {index.training_queries:,} training queries"
        if not complete:
            reason += (
                f"; candidates were compared on {len(part):,} of {len(self.source):,} vectors: "
                "recall as measured there, memory and build time in proportion, latency as each "
                "type grows"
            )
        return Choice(index, self._table, final[kind], reason, self._limits)

    def _candidates(self, count: int, width: int) -> dict[str, Candidate]:
        memory = self._limits.memory
        bytes_each = math.inf if memory is None else memory / len(self.source)
        tried = candidates(
            count, width, self._metric, k=self._limits.k, bytes_each=bytes_each,
            training=self._training,
        )  # fmt: skip
        return {candidate.kind: candidate for candidate in tried}

    def _compared(
        self, candidate: Candidate, of_all: Candidate, part: Vectors, judge: Judge
    ) -> list[Measured]:
        """Measure one candidate's settings on a part until one meets the target."""
        rows: list[Measured] = []
        try:
            complete = len(part) == len(self.source)
            built = self._of_all(candidate) if complete else self._built(candidate, part)
            for setting in candidate.settings:
                rows.append(self._row(of_all, setting, part, built, judge, judge))
                if "recall" not in rows[-1].breaks or self._is_slow(rows[-1]) or saturated(rows):
                    break
        except (ConfigError, DataError) as error:
            log.info("auto index: %s left out: %s", candidate.name, error)
            self._failed.append(f"{candidate.name}: {error}")
        return rows

    def _worth_building(self, best: Mapping[str, Measured]) -> list[str]:
        """Return the kinds to build on all vectors, the most promising first."""
        ranked = sorted(best, key=lambda kind: self._rank(best[kind]))
        return ranked[:BUILDS] + [kind for kind in ranked[BUILDS:] if kind == self._flat.kind]

    def _tuned(self, candidate: Candidate, choosing: Judge, checking: Judge) -> list[Measured]:
        """Measure settings on all vectors until one meets the target on both halves."""
        rows: list[Measured] = []
        try:
            built = self._of_all(candidate)
            for setting in candidate.settings:
                rows.append(self._row(candidate, setting, self.source, built, choosing, checking))
                if "recall" not in rows[-1].breaks or self._is_slow(rows[-1]):
                    break
        except (ConfigError, DataError) as error:
            self._failed.append(f"{candidate.name}: {error}")
        return rows

    def _of_all(self, candidate: Candidate) -> Built:
        if candidate.kind not in self._on_all:
            self._on_all[candidate.kind] = self._built(candidate, self.source)
        return self._on_all[candidate.kind]

    def _built(self, candidate: Candidate, vectors: Vectors) -> Built:
        count = len(vectors)
        index = candidate.make()
        start = time.perf_counter()
        sample = max(candidate.training, index.training_rows(count))
        if sample:
            index.train(vectors.sample(min(sample, count), self._seed))
        if self._work is not None and vectors is self.source:
            index.spool(self._work / f"auto{len(self._on_all)}")
        label = f"build {candidate.name}"
        with progress(label, count, "vectors", show=count >= SHOWN) as advance:
            for chunk in vectors:
                advance(len(index.add(chunk)))
        if isinstance(index, QueryGraphIndex):  # not in the first search that is timed
            index.link()
        return index, time.perf_counter() - start

    def _row(
        self,
        candidate: Candidate,
        setting: Mapping[str, Any],
        vectors: Vectors,
        built: Built,
        choosing: Judge,
        checking: Judge,
    ) -> Measured:
        """Measure one setting; figures of a part are extrapolated to all vectors.

        The target has to be met by the lower bound on the choosing queries, and by the mean on the
        checking ones.
        """
        index, seconds = built
        low = 1.0
        shares: NDArray[np.float64] = np.ones(1)
        if not candidate.exact:
            shares = choosing.recalls(index, setting)
            low = lower_bound(shares, self._limits.k)
            if checking is not choosing:
                shares = checking.recalls(index, setting)
        one, batch = checking.latency(index, setting)
        before, after = len(vectors), len(self.source)
        slower, larger = candidate.slower(before, after), after / before
        memory, latency = round(index.resident_bytes * larger), one * slower
        recall = float(shares.mean())
        limits = self._limits
        breaks = {
            "recall": min(recall, low) < limits.recall,
            "memory": limits.memory is not None and memory > limits.memory,
            "latency": limits.latency_ms is not None and latency > limits.latency_ms,
        }
        return Measured(
            name=candidate.name,
            params=dict(setting),
            measured_on=before,
            queries="choosing" if checking is choosing else "held-out",
            recall=recall,
            recall_low=low,
            ms_one=latency,
            ms_batch=batch * slower,
            memory_bytes=memory,
            build_seconds=seconds * larger,
            exact=candidate.exact,
            breaks=tuple(name for name, broken in breaks.items() if broken),
        )

    def _is_slow(self, row: Measured) -> bool:
        most = self._limits.latency_ms
        return most is not None and row.ms_one > HOPELESS * most

    def _rank(self, row: Measured) -> tuple[float, ...]:
        """Return what sorts the better row first."""
        limits = self._limits
        if not row.breaks:
            if limits.latency_ms is None:
                return (0, row.ms_one)
            return (0, 0 if row.exact else 1, row.build_seconds)
        if row.breaks == ("recall",):
            return (1, -min(row.recall, limits.recall), row.ms_one)
        excess = max(0.0, math.log((1.001 - row.recall) / (1.001 - limits.recall)))
        if limits.memory is not None:
            excess += max(0.0, math.log(row.memory_bytes / limits.memory))
        if limits.latency_ms is not None:
            excess += max(0.0, math.log(row.ms_one / limits.latency_ms))
        return (2, excess)

    def _reason(self, row: Measured, checking: Judge) -> str:
        figures = (
            f"recall@{self._limits.k} {row.recall:.4f} on {len(checking)} held-out queries, "
            f"{row.ms_one:.3f} ms a query, {spelled_bytes(row.memory_bytes)}"
        )
        if row.breaks:
            return (
                f"no candidate meets {self._limits}; {row.label} comes closest and "
                f"breaks {' and '.join(row.breaks)}: {figures}"
            )
        if self._limits.latency_ms is None:
            why = "the fastest"
        elif row.exact:
            return (
                f"{row.label}: exact search, which is fast enough to meet {self._limits}: {figures}"
            )
        else:
            why = "the fastest to build"
        return f"{row.label}, {why} of those that meet {self._limits}: {figures}"


def saturated(rows: list[Measured]) -> bool:
    """Return whether the last two settings added almost nothing."""
    return len(rows) > 2 and rows[-1].recall - rows[-3].recall < SATURATED
