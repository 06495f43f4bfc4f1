"""Files of precomputed sparse vectors: what every format checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

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

    given: Iterable[Any] = [vectors] if sp.issparse(vectors) else vectors
    for chunk in given:
        kind = getattr(getattr(chunk, "dtype", None), "kind", "")
        matrix = checked_sparse(
            chunk.astype(np.float32) if kind in ("i", "u") else chunk, "vectors"
        )
        if matrix.shape[1] > len(terms):
            raise DataError(f"vectors: {matrix.shape[1]:,} columns, but {len(terms):,} terms")
        if whole and (matrix.data != np.rint(matrix.data)).any():
            raise DataError(
                "vectors: weights that are no whole numbers; this format holds whole numbers: "
                "multiply and round them first"
            )
        if whole and matrix.data.max(initial=0) >= 2.0**31:
            raise DataError("vectors: weights of 2^31 and more; this format has 31 bits: scale")
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
