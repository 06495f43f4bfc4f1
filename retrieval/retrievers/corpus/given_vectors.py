"""Vectors that the caller brings: those of a corpus in one array or several, and of a query."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.sparse as sp

from sluice.encoders.foundation.errors import DataError


def as_matrices(vectors: Any) -> Iterable[Any]:
    """Return the vectors of a corpus as matrices, float32 numpy or ``csr_array``.

    ``vectors`` is one matrix ``[n, dim]`` (numpy, scipy, torch, a list of lists), or an iterable of
    matrices in corpus order, which is left unread.
    """
    if hasattr(vectors, "shape") or hasattr(vectors, "detach"):
        return [_matrix(vectors)]
    if isinstance(vectors, (list, tuple)) and vectors and np.ndim(vectors[0]) < 2:
        return [_matrix(vectors)]
    if not isinstance(vectors, Iterable):
        raise DataError(f"vectors: a {type(vectors).__name__}; expected an array [n, dim]")
    return map(_matrix, vectors)


def one_vector(vector: Any) -> Any:
    """Return a query's vector as a matrix ``[1, dim]``; ``DataError`` for more than one."""
    matrix = _matrix(vector if sp.issparse(vector) else np.atleast_2d(_plain(vector)))
    if matrix.shape[0] != 1:
        raise DataError(
            f"vector: shape {tuple(matrix.shape)}, expected one vector [dim]; search one at a time"
        )
    return matrix


def _matrix(vectors: Any) -> Any:
    if sp.issparse(vectors):
        rows: Any = vectors
        return sp.csr_array(rows).astype(np.float32, copy=False)
    plain = _plain(vectors)
    if plain.ndim == 2 and plain.dtype.kind in "fiu":
        return plain.astype(np.float32, copy=False)
    return plain  # the index says what it expects


def _plain(vectors: Any) -> Any:
    """Return anything array-like as a numpy array, tensors from wherever they are."""
    if hasattr(vectors, "detach"):
        vectors = vectors.detach().cpu().float().numpy()
    try:
        return np.asarray(vectors)
    except ValueError as error:  # lists of different lengths
        raise DataError(f"vectors: {error}; expected an array [n, dim]") from None
