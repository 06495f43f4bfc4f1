"""Postings by term: which documents carry a term, and with what impact. Immutable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import sparse


class Postings(NamedTuple):
    """Term ``t``'s postings are ``rows[starts[t]:starts[t + 1]]`` and the same of ``impacts``.

    Rows ascend within a term. ``starts`` is int64 ``[terms + 1]``, ``rows`` uint32 and ``impacts``
    float32 ``[postings]``. The arrays are read-only, in memory or mapped from files: numba compiles
    one kernel for both, because writable and read-only arrays are different types to it.
    """

    starts: NDArray[np.int64]
    rows: NDArray[np.uint32]
    impacts: NDArray[np.float32]

    @classmethod
    def empty(cls, terms: int = 0) -> Postings:
        """Return postings of ``terms`` terms that no document carries."""
        return _frozen(
            np.zeros(terms + 1, dtype=np.int64),
            np.zeros(0, dtype=np.uint32),
            np.zeros(0, dtype=np.float32),
        )

    @property
    def terms(self) -> int:
        """Number of terms, those without postings included."""
        return len(self.starts) - 1

    @property
    def size_bytes(self) -> int:
        """Bytes of the three arrays."""
        return self.starts.nbytes + self.rows.nbytes + self.impacts.nbytes

    def extended(
        self, chunks: Sequence[sparse.csr_array[Any]], first_row: int, terms: int
    ) -> Postings:
        """Return these postings and those of ``chunks``, whose documents begin at ``first_row``.

        A counting sort by term: each posting is moved once, and memory peaks at both copies.
        """
        counts = np.zeros(terms, dtype=np.int64)
        counts[: self.terms] = np.diff(self.starts)
        for chunk in chunks:
            counts[: chunk.shape[1]] += np.bincount(chunk.indices, minlength=chunk.shape[1])
        starts = np.zeros(terms + 1, dtype=np.int64)
        np.cumsum(counts, out=starts[1:])
        rows = np.empty(int(starts[-1]), dtype=np.uint32)
        impacts = np.empty(int(starts[-1]), dtype=np.float32)
        places = starts[:-1].copy()
        _copy_postings(*self, places, rows, impacts)
        for chunk in chunks:
            _scatter(
                _readonly(chunk.indptr, np.int64),
                _readonly(chunk.indices, np.int64),
                _readonly(chunk.data, np.float32),
                first_row,
                places,
                rows,
                impacts,
            )
            first_row += chunk.shape[0]
        return _frozen(starts, rows, impacts)

    def filtered(self, allowed: NDArray[np.bool_]) -> Postings:
        """Return the postings of the rows that ``allowed`` marks, renumbered without gaps."""
        moved = np.cumsum(allowed, dtype=np.int64) - 1
        kept = allowed[self.rows]
        passed = np.zeros(len(kept) + 1, dtype=np.int64)
        np.cumsum(kept, out=passed[1:])
        return _frozen(
            passed[self.starts], moved[self.rows[kept]].astype(np.uint32), self.impacts[kept]
        )


def _readonly(array: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    view = np.ascontiguousarray(array, dtype=dtype).view()
    view.setflags(write=False)
    return view


def _frozen(
    starts: NDArray[np.int64], rows: NDArray[np.uint32], impacts: NDArray[np.float32]
) -> Postings:
    for array in (starts, rows, impacts):
        array.setflags(write=False)
    return Postings(starts, rows, impacts)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _copy_postings(
    starts: NDArray[np.int64],
    rows: NDArray[np.uint32],
    impacts: NDArray[np.float32],
    places: NDArray[np.int64],
    rows_out: NDArray[np.uint32],
    impacts_out: NDArray[np.float32],
) -> None:
    """Copy every term's postings to its place and move the place behind them."""
    for term in range(len(starts) - 1):
        place = places[term]
        for i in range(starts[term], starts[term + 1]):
            rows_out[place] = rows[i]
            impacts_out[place] = impacts[i]
            place += 1
        places[term] = place


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _scatter(
    indptr: NDArray[np.int64],
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    first_row: int,
    places: NDArray[np.int64],
    rows_out: NDArray[np.uint32],
    impacts_out: NDArray[np.float32],
) -> None:
    """Append each document's terms to their postings, documents in order."""
    for document in range(len(indptr) - 1):
        for i in range(indptr[document], indptr[document + 1]):
            place = places[terms[i]]
            rows_out[place] = np.uint32(first_row + document)
            impacts_out[place] = weights[i]
            places[terms[i]] = place + 1
