"""Checks and quantises sparse vectors on their way into files of other tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Column: TypeAlias = Callable[[str], int]  # a term to its column; a new term gets the next one


def checked_chunks(
    vectors: csr_array[Any] | Iterable[csr_array[Any]], terms: Sequence[str], *, whole: bool
) -> Iterator[csr_array[Any]]:
    """Yield the matrices checked: finite, not negative, sorted, and as wide as ``terms`` at most.

    With ``whole`` the weights must be whole numbers that 32 bits hold.
    """
    import scipy.sparse as sp

    from sluice.indexing.checks import checked_sparse

    matrices: Iterable[Any] = [vectors] if sp.issparse(vectors) else vectors
    for chunk in matrices:
        kind = getattr(getattr(chunk, "dtype", None), "kind", "")
        matrix = checked_sparse(
            chunk.astype(np.float32) if kind in ("i", "u") else chunk, "vectors"
        )
        if matrix.shape[1] > len(terms):
            raise DataError(f"vectors: {matrix.shape[1]:,} columns, but {len(terms):,} terms")
        if whole and (matrix.data != np.rint(matrix.data)).any():
            raise DataError(
                "vectors: some weights are not integers; this format holds integers: "
                "multiply and round them first"
            )
        if whole and matrix.data.max(initial=0) >= 2.0**31:
            raise DataError("vectors: weights of 2^31 or more; this format has 31 bits: scale them")
        yield matrix


def refuse_repeated(terms: Sequence[str]) -> None:
    """Raise ``DataError`` if a term occurs twice."""
    if len(set(terms)) == len(terms):
        return
    seen: set[str] = set()
    for column, term in enumerate(terms):
        if term in seen:
            raise DataError(f"terms: {term!r} again in column {column}; terms are unique")
        seen.add(term)


def refuse_count(documents: int, rows: int) -> None:
    """Raise ``DataError`` unless there are as many documents as vectors."""
    if documents != rows:
        raise DataError(f"vectors: {rows:,} rows for {documents:,} documents; give one each")


@dataclass(slots=True)
class Survey:
    """Counts over sparse vectors, taken before they are quantised."""

    documents: int
    frequencies: NDArray[np.int64]  # [terms] documents with the term
    largest: NDArray[np.float32]  # [terms] the term's largest weight
    whole: bool  # every weight is a whole number


def surveyed(chunks: Iterable[csr_array[Any]], terms: int) -> Survey:
    """Count the documents and weights of ``chunks``, which have at most ``terms`` columns."""
    survey = Survey(0, np.zeros(terms, np.int64), np.zeros(terms, np.float32), True)
    for chunk in chunks:
        used = chunk.indices[chunk.data > 0]
        survey.documents += int(chunk.shape[0])
        survey.frequencies += np.bincount(used, minlength=terms)
        np.maximum.at(survey.largest, chunk.indices, chunk.data)
        survey.whole = survey.whole and bool((chunk.data == np.rint(chunk.data)).all())
    return survey


class Quantiser:
    """Rounds ``scale`` times a weight to the nearest integer and counts the loss.

    ``factors`` are multiplied in first, one a term. ``lost`` weights became zero; of the others
    ``largest_error`` is the largest of ``|rounded / scale - weight| / weight``.
    """

    def __init__(self, scale: float, factors: NDArray[np.float64] | None = None) -> None:
        self.scale = scale
        self.postings = 0
        self.lost = 0
        self.largest_error = 0.0
        self._factors = factors

    def __call__(self, chunk: csr_array[Any]) -> csr_array[Any]:
        """Return the chunk in whole numbers, float32, without zeros."""
        import scipy.sparse as sp

        weights = chunk.data.astype(np.float64)
        if self._factors is not None:
            weights *= self._factors[chunk.indices]
        rounded = np.rint(weights * self.scale)
        positive = rounded > 0
        relative = np.abs(rounded[positive] / self.scale / weights[positive] - 1.0)
        self.postings += int(np.count_nonzero(positive))
        self.lost += int(np.count_nonzero((weights > 0) & ~positive))
        self.largest_error = max(self.largest_error, float(relative.max(initial=0.0)))
        quantised = sp.csr_array(
            (rounded.astype(np.float32), chunk.indices, chunk.indptr), shape=chunk.shape
        )
        quantised = quantised.copy()
        quantised.eliminate_zeros()
        return quantised
