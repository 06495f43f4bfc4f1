"""The result of a search: rows and scores, one line per query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.familiar import unknown

MISSING_ROW = -1
MISSING_SCORE = -np.inf
LARGEST_SCORE = np.finfo(np.float32).max  # of a hit; sums beyond it are cut off there


class Hits(NamedTuple):
    """The best documents of each query: score descending, then row ascending.

    ``rows`` is int64 ``[n, k]`` and ``scores`` float32 ``[n, k]``; higher is better whatever the
    metric. Places that no document fills hold row -1 and score -inf, and come last; the scores of
    hits are finite.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]

    @classmethod
    def missing(cls, queries: int, k: int) -> Hits:
        """Return ``[queries, k]`` places that no document fills."""
        return cls(
            np.full((queries, k), MISSING_ROW, dtype=np.int64),
            np.full((queries, k), MISSING_SCORE, dtype=np.float32),
        )

    @classmethod
    def of_all(cls, several: Sequence[Hits], queries: int, k: int) -> Hits:
        """Return the best ``k`` of several results of the same queries; no two have a row."""
        if not several:
            return cls.missing(queries, k)
        rows = np.concatenate([hits.rows for hits in several], axis=1)
        scores = np.concatenate([hits.scores for hits in several], axis=1)
        return cls(rows, scores).sorted(k).padded(k)

    def padded(self, k: int) -> Hits:
        """Return these hits with empty places up to ``k`` on every line."""
        queries, filled = self.rows.shape
        if filled == k:
            return self
        hits = Hits.missing(queries, k)
        hits.rows[:, :filled], hits.scores[:, :filled] = self
        return hits

    def sorted(self, k: int | None = None) -> Hits:
        """Return the first ``k`` of each line: score descending, then row ascending."""
        order = np.lexsort((self.rows, -self.scores), axis=-1)[:, :k]
        return Hits(
            np.take_along_axis(self.rows, order, axis=-1),
            np.take_along_axis(self.scores, order, axis=-1),
        )


if not TYPE_CHECKING:  # a checker would take any name
    Hits.__getattr__ = unknown


def best_first(
    rows: NDArray[np.int64], scores: NDArray[np.float32], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the first ``k`` of one query's candidates: score descending, then row ascending."""
    order = np.lexsort((rows, -scores))[:k]
    return rows[order], scores[order]
