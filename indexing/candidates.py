"""The documents that may still be among one query's ``k`` best while blocks of them pass by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from indexing.exact import Metric, Norms, exact_scores
from indexing.hits import best_first
from indexing.vectors import Dense

PREFIX = 4_096  # documents, or 4 k, from which the first floor is guessed
SLACK = 64  # candidates beyond 2 k before all but the best k are dropped


class Candidates:
    """One query's candidates: rows with exact scores, each block filtered by approximate ones.

    No document of the true ``k`` best is ever dropped: it is only when its approximate score, plus
    the bound on the error, stays under a proven lower bound of the k-th best exact score.
    """

    def __init__(self, query: Dense, metric: Metric, norm: float, k: int) -> None:
        self._query = query
        self._metric = metric
        self._norm = norm
        self._k = k
        self._rows: list[NDArray[np.int64]] = []
        self._scores: list[Dense] = []
        self._count = 0
        self._least = -np.inf  # k documents seen so far score at least this

    def offer(
        self,
        approximate: Dense,
        error: float,
        rows: NDArray[np.int64],
        vectors: Dense,
        norms: Norms,
    ) -> None:
        """Take a block's documents that may be hits; rows must rise from block to block.

        ``error`` bounds how far ``approximate`` ``[documents]`` is from the exact scores.
        """
        self._raise_floor(approximate, error)
        # One step down: rounding the floor to float32 must not lift it.
        floor = np.nextafter(np.float32(self._least - error), np.float32(-np.inf))
        places = np.flatnonzero(~(approximate < floor))  # so written that NaN stays a candidate
        if not len(places):
            return
        scores = exact_scores(self._query, vectors[places], self._metric, self._norm, norms[places])
        self._rows.append(rows[places])
        self._scores.append(scores)
        self._count += len(places)
        if self._count > 2 * self._k + SLACK:
            self._shrink()

    def _raise_floor(self, approximate: Dense, error: float) -> None:
        """Use that a block's k-th best approximate score, less the error, bounds the k-th best."""
        if len(approximate) < self._k or not np.isfinite(error):
            return
        floor = np.float32(self._least)
        if floor == -np.inf:  # a guess from the front spares a partition of the whole block
            floor = _kth(approximate[: max(PREFIX, 4 * self._k)], self._k)
        above = approximate[approximate >= floor]
        if len(above) >= self._k:
            self._least = max(self._least, float(_kth(above, self._k)) - error)

    def best(self) -> tuple[NDArray[np.int64], Dense]:
        """Return rows and scores of the ``k`` best, best first."""
        if not self._rows:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        self._shrink()
        return self._rows[0], self._scores[0]

    def _shrink(self) -> None:
        rows, scores = best_first(np.concatenate(self._rows), np.concatenate(self._scores), self._k)
        self._rows, self._scores, self._count = [rows], [scores], len(rows)
        if len(rows) == self._k:
            self._least = max(self._least, float(scores[-1]))


def _kth(scores: Dense, k: int) -> np.float32:
    """Return the k-th largest of at least ``k`` scores."""
    place = len(scores) - k
    return np.float32(np.partition(scores, place)[place])
