"""Measures recall and latency of an index on queries whose exact neighbours are known."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sluice.indexing.auto.vector_source import Vectors, exact_hits
from sluice.indexing.checks import Dense
from sluice.indexing.index import Index
from sluice.indexing.live_rows import Rows
from sluice.indexing.storage.exact_scores import Metric

CONFIDENCE = 1.645  # standard deviations: one-sided 95%
TIED = 1e-6  # relative difference of scores that float32 sums cannot tell apart
WARM = 3  # searches before the timed ones
TIMED = 100  # queries timed one at a time, at most
LEAST_TIMED = 5
SECONDS = 0.5  # after which no more are timed


@dataclass(frozen=True, slots=True)
class Judge:
    """Some queries and what exact search finds for each.

    ``own`` is the row of a query that is itself a document, -1 otherwise: that row does not count.
    """

    queries: Dense
    own: Rows
    accepted: list[Rows]  # rows at least as good as the k-th best
    expected: NDArray[np.int64]  # k, or fewer in a smaller corpus
    k: int

    @classmethod
    def of(cls, vectors: Vectors, queries: Dense, own: Rows, k: int, metric: Metric) -> Self:
        """Search the vectors exactly; a document tied with the k-th best is as good as it."""
        hits = exact_hits(vectors, queries, min(2 * k + 16, len(vectors)), metric)
        accepted, counts = [], []
        for rows, scores, self_row in zip(hits.rows, hits.scores, own, strict=True):
            real = (rows >= 0) & (rows != self_row)
            rows, scores = rows[real], scores[real]
            count = min(k, len(rows))
            least = scores[count - 1] if count else 0.0
            accepted.append(rows[scores >= least - TIED * abs(least)])
            counts.append(count)
        return cls(queries, own, accepted, np.array(counts, dtype=np.int64), k)

    @classmethod
    def unanswered(cls, queries: Dense, k: int) -> Self:
        """Return queries that only time an index."""
        none = np.full(len(queries), -1, dtype=np.int64)
        return cls(queries, none, [none[:0]] * len(queries), np.zeros(len(queries), np.int64), k)

    def __len__(self) -> int:
        return len(self.queries)

    def split(self, seed: int) -> tuple[Self, Self]:
        """Return two random halves: to choose by, and to check with."""
        order = np.random.default_rng(seed).permutation(len(self))
        middle = (len(order) + 1) // 2
        return self._only(order[:middle]), self._only(order[middle:])

    def _only(self, places: NDArray[np.int64]) -> Self:
        return type(self)(
            self.queries[places],
            self.own[places],
            [self.accepted[place] for place in places],
            self.expected[places],
            self.k,
        )

    def recalls(self, index: Index, params: Mapping[str, Any]) -> NDArray[np.float64]:
        """Return each query's share of its ``k`` best that the index finds."""
        extra = int((self.own >= 0).any())
        hits = index.search(self.queries, self.k + extra, params=params).rows
        shares = np.ones(len(self))
        for place, (rows, own) in enumerate(zip(hits, self.own, strict=True)):
            others = rows[(rows >= 0) & (rows != own)][: self.k]
            expected = int(self.expected[place])
            if expected:
                good = int(np.isin(others, self.accepted[place]).sum())
                shares[place] = min(good, expected) / expected
        return shares

    def latency(self, index: Index, params: Mapping[str, Any]) -> tuple[float, float]:
        """Return milliseconds a query: the median of one at a time, and the mean in a batch."""
        for place in range(min(WARM, len(self))):
            index.search(self.queries[place : place + 1], self.k, params=params)
        times: list[float] = []
        start = time.perf_counter()
        for place in range(min(TIMED, len(self))):
            before = time.perf_counter()
            index.search(self.queries[place : place + 1], self.k, params=params)
            times.append(time.perf_counter() - before)
            if len(times) >= LEAST_TIMED and time.perf_counter() - start > SECONDS:
                break
        index.search(
            self.queries[: 2 * WARM], self.k, params=params
        )  # batches have code of their own
        before = time.perf_counter()
        index.search(self.queries, self.k, params=params)
        batch = (time.perf_counter() - before) / max(1, len(self))
        return 1000 * float(np.median(times)), 1000 * batch


def lower_bound(shares: NDArray[np.float64], k: int) -> float:
    """Return the lower end of the one-sided 95% interval of the mean recall (Wilson, 1927).

    The trials are places of hits, but those of one query rise and fall together; they count as
    many as would give the spread that is seen between queries (Korn and Graubard, 1998): between
    the number of queries and ``k`` times it.
    """
    queries = len(shares)
    if not queries:
        return 0.0
    mean = float(shares.mean())
    spread = float(shares.var(ddof=1)) / queries if queries > 1 else mean * (1 - mean)
    trials = mean * (1 - mean) / spread if spread > 0 else float(queries * k)
    trials = min(max(trials, float(queries)), float(queries * k))
    square = CONFIDENCE**2 / trials
    centre = mean + square / 2
    radius = CONFIDENCE * math.sqrt(mean * (1 - mean) / trials + square / (4 * trials))
    return max(0.0, (centre - radius) / (1 + square))
