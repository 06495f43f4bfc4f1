"""The hits of a search, rows and scores; and which rows may be hits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.encoders.foundation.errors import DataError
from sluice.familiar import unknown

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]


class LiveRows:
    """The rows of one index: allotted in order, deleted by tombstone, renumbered by ``compact``."""

    def __init__(self, total: int = 0, deleted: Rows | None = None) -> None:
        self.total = total
        self._dead: Mask = np.zeros(0, dtype=np.bool_)  # rows past its end are live
        self._dead_count = 0
        self._mask: Mask | None = None  # of the live rows, computed when first needed
        if deleted is not None and len(deleted):
            self.delete(deleted)

    def __len__(self) -> int:
        return self.total - self._dead_count

    @property
    def deleted(self) -> Rows:
        """The deleted rows, ascending."""
        return np.flatnonzero(self._dead).astype(np.int64)

    def extend(self, count: int) -> Rows:
        """Allot ``count`` new rows and return them."""
        rows = np.arange(self.total, self.total + count, dtype=np.int64)
        self.total += count
        self._mask = None
        return rows

    def delete(self, rows: ArrayLike) -> None:
        """Put tombstones on ``rows``, all of them or, with a ``DataError``, none."""
        dying = self.known(np.asarray(rows), "delete")
        dead = np.zeros(self.total, dtype=np.bool_)
        dead[: len(self._dead)] = self._dead
        if len(already := dying[dead[dying]]):
            raise DataError(f"delete: row {already[0]} is already deleted; nothing was deleted")
        dead[dying] = True
        if np.count_nonzero(dead) != self._dead_count + len(dying):
            values, counts = np.unique(dying, return_counts=True)
            raise DataError(
                f"delete: row {values[counts > 1][0]} occurs twice; nothing was deleted"
            )
        self._dead = dead
        self._dead_count += len(dying)
        self._mask = None

    def allowed(self, keep: ArrayLike | None = None) -> Mask | None:
        """Return the mask ``[total]`` of rows that may be hits; None when all of them may.

        It is read-only: the one without ``keep`` is shared by all searches.
        """
        if keep is None:
            if not self._dead_count:
                return None
            if self._mask is not None:
                return self._mask
            mask = np.ones(self.total, dtype=np.bool_)
        else:
            mask = self._kept(np.asarray(keep))
        mask[: len(self._dead)] &= ~self._dead
        mask.setflags(write=False)
        if keep is None:
            self._mask = mask
        return mask

    def compact(self) -> Rows:
        """Forget the deleted rows; return the new row of each old one, -1 where it was deleted."""
        mask = self.allowed()
        if mask is None:
            return np.arange(self.total, dtype=np.int64)
        moved = np.cumsum(mask, dtype=np.int64) - 1
        moved[~mask] = -1
        self.total = len(self)
        self._dead = np.zeros(0, dtype=np.bool_)
        self._dead_count = 0
        self._mask = None
        return moved

    def _kept(self, keep: NDArray[np.generic]) -> Mask:
        if keep.dtype == np.bool_:
            if keep.shape != (self.total,):
                raise DataError(
                    f"keep: a mask of shape {keep.shape}, expected one boolean for each of the "
                    f"{self.total:,} rows"
                )
            return keep.astype(np.bool_)  # a copy: tombstones are written into it
        mask = np.zeros(self.total, dtype=np.bool_)
        mask[self.known(keep, "keep")] = True
        return mask

    def known(self, rows: NDArray[np.generic], what: str) -> Rows:
        """Return row numbers as int64; ``DataError`` for other than rows that were allotted."""
        if rows.size == 0:
            return np.zeros(0, dtype=np.int64)
        if rows.ndim > 1 or not np.issubdtype(rows.dtype, np.integer):
            raise DataError(
                f"{what}: {rows.dtype} of shape {rows.shape}, expected a list of row numbers"
                f"{' or a boolean mask' if what == 'keep' else ''}"
            )
        numbers = np.atleast_1d(rows).astype(np.int64)
        unknown = numbers[(numbers < 0) | (numbers >= self.total)]
        if len(unknown):
            raise DataError(
                f"{what}: no row {unknown[0]}; this index has rows 0 to {self.total - 1:,}"
                if self.total
                else f"{what}: no row {unknown[0]}; this index is empty"
            )
        return numbers


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
