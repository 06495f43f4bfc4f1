"""Checks the vectors that go into an index: shape, width, dtype, finite values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.errors import DataError
from sluice.indexing.kernels.calls import kernels_loaded

Dense = NDArray[np.float32]

A_QUERY = 1 << 12  # values, of which each is looked at
FEW = 1 << 20  # values that scipy checks sooner than compiled kernels are loaded


def checked_dense(vectors: Any, width: int | None, what: str) -> Dense:
    """Return dense vectors as a C-contiguous float32 array ``[n, width]``.

    float64 and float16 are cast. ``DataError`` for another type, dtype, shape or width, and for
    NaN and infinite values; ``what`` names the vectors in the message.
    """
    if not isinstance(vectors, np.ndarray):
        if sparse.issparse(vectors):
            raise DataError(
                f"{what}: a sparse matrix, expected a dense array [n, dim]; "
                "sparse vectors go into InvertedIndex"
            )
        raise DataError(f"{what}: {type(vectors).__name__}, expected a numpy array [n, dim]")
    _check_floating(vectors.dtype, what)
    if vectors.ndim != 2:
        hint = "; one vector is vectors[None, :]" if vectors.ndim == 1 else ""
        raise DataError(f"{what}: shape {vectors.shape}, expected [n, dim]{hint}")
    if vectors.shape[1] == 0:
        raise DataError(f"{what}: shape {vectors.shape}, expected at least one dimension")
    if width is not None and vectors.shape[1] != width:
        raise DataError(
            f"{what}: {vectors.shape[1]} dimensions, this index holds {width}; "
            "encode with the encoder the index was built with"
        )
    dense = vectors
    if vectors.dtype != np.float32 or not vectors.flags.c_contiguous:
        with np.errstate(over="ignore"):  # what overflows float32 is reported below
            dense = np.ascontiguousarray(vectors, dtype=np.float32)
    if dense.size <= A_QUERY:
        suspicious = not np.isfinite(dense).all()
    else:  # the sum is not finite if a value is not, and needs no mask as large as the input
        with np.errstate(over="ignore", invalid="ignore"):
            suspicious = not np.isfinite(dense.sum())
    if suspicious:
        _refuse_non_finite(dense, what)
    return dense


def _refuse_non_finite(dense: Dense, what: str) -> None:
    bad = np.argwhere(~np.isfinite(dense))
    if len(bad):
        row, column = bad[0]
        raise DataError(
            f"{what}: row {row}, dimension {column} is {dense[row, column]} in float32; "
            "expected finite values"
        )


def checked_sparse(vectors: Any, what: str) -> sparse.csr_array[Any]:
    """Return sparse vectors as a canonical float32 CSR array: sorted, without duplicates or zeros.

    The caller's matrix is left as it is. ``DataError`` for another type or dtype, a broken
    structure, and for negative, NaN and infinite weights (with row and term).
    """
    usual = type(vectors) is sparse.csr_array and vectors.data.dtype == np.float32
    # Where numba is not loaded yet, a few values are checked before it would be.
    if usual and (kernels_loaded() or vectors.nnz > FEW):
        from sluice.indexing.kernels.sparse_form import GOOD, inspect

        shape = vectors.shape
        structure = vectors.indptr, vectors.indices, vectors.data
        if len(shape) == 2 and inspect(*structure, shape[1]) == GOOD:
            plain: sparse.csr_array[Any] = vectors  # the fast case: some searches take 0.1 ms
            return plain
    if not sparse.issparse(vectors):
        kind = type(vectors).__name__
        remedy = "; dense vectors go into FlatIndex or FaissIndex" if kind == "ndarray" else ""
        raise DataError(f"{what}: {kind}, expected a scipy.sparse.csr_array [n, terms]{remedy}")
    source: Any = vectors  # one of scipy's many sparse classes
    _check_floating(source.dtype, what)
    if source.ndim != 2:
        raise DataError(f"{what}: shape {source.shape}, expected [n, terms]")
    matrix: sparse.csr_array[Any] = sparse.csr_array(source)
    try:
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise DataError(f"{what}: the CSR structure is broken: {error}") from None
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    with np.errstate(over="ignore"):
        weights = matrix.data.astype(np.float32, copy=False)
    good = (weights >= 0) & np.isfinite(weights)
    if not good.all():
        _refuse_weight(matrix, weights, int(np.argmin(good)), what)
    clean = sparse.csr_array((weights, matrix.indices, matrix.indptr), shape=matrix.shape)
    if not weights.all():
        clean = clean.copy()
        clean.eliminate_zeros()
    return clean


def _refuse_weight(
    matrix: sparse.csr_array[Any], weights: NDArray[np.float32], place: int, what: str
) -> None:
    row = int(np.searchsorted(matrix.indptr, place, side="right")) - 1
    raise DataError(
        f"{what}: row {row}, term {matrix.indices[place]} has the weight {weights[place]}; "
        "expected finite weights of at least 0"
    )


def _check_floating(dtype: np.dtype[Any], what: str) -> None:
    if dtype != np.float32 and not np.issubdtype(dtype, np.floating):
        raise DataError(
            f"{what}: dtype {dtype}, expected float32; convert with .astype('float32') if these "
            "are vectors"
        )
