"""Converts vectors to their form on disk (float32, float16 or int8) and back to float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sluice.encoders.encoder import Dense, Vectors
from sluice.encoders.foundation.errors import DataError, ModelError
from sluice.encoders.foundation.token_vectors import TokenVectors

Store: TypeAlias = Literal["float32", "float16", "int8"]
Values: TypeAlias = NDArray[Any]

STORES: tuple[Store, ...] = ("float32", "float16", "int8")
EXACT: Store = "float32"
LARGEST_INT8 = 127


def checked_vectors(vectors: Any, count: int, who: str) -> Vectors:
    """Return an encoder's vectors as float32 ``[count, width]``; an error names what is wrong."""
    matrix: Any = vectors  # one of scipy's many sparse classes, or a numpy array
    if isinstance(vectors, TokenVectors):
        values = vectors.values
    elif sp.issparse(vectors):
        matrix = sp.csr_array(matrix).astype(np.float32, copy=False)
        values = matrix.data
    elif isinstance(vectors, np.ndarray) and vectors.ndim == 2:
        matrix = values = np.ascontiguousarray(vectors, np.float32)
    else:
        shape = f" of shape {vectors.shape}" if isinstance(vectors, np.ndarray) else ""
        raise ModelError(
            f"{who}: encode_documents returned {type(vectors).__name__}{shape}, expected an array "
            "[texts, dim], a scipy.sparse.csr_array or TokenVectors"
        )
    if matrix.shape[0] != count:
        raise ModelError(f"{who}: {matrix.shape[0]:,} vectors for {count:,} texts; give one each")
    if not np.isfinite(values).all():
        raise DataError(f"{who}: a vector is not finite (NaN or infinite); it was not stored")
    checked: Vectors = matrix
    return checked


def stored_form(vectors: Vectors, store: Store) -> dict[str, Values]:
    """Return the arrays that represent the vectors on disk.

    int8 has a scale for each vector (of token vectors, for each token's), its largest value / 127;
    the rounding error is at most half of it. ``DataError`` for a value too large for float16.
    """
    if isinstance(vectors, TokenVectors):
        return {"bounds": vectors.bounds, **stored_form(_plain(vectors), store)}
    if isinstance(vectors, np.ndarray):
        lines = np.full(len(vectors), vectors.shape[1])
        return _encoded(vectors.reshape(-1), lines, store, vectors.shape)
    sparse = vectors.copy() if not vectors.has_sorted_indices else vectors
    sparse.sort_indices()
    starts = np.asarray(sparse.indptr, np.int64)
    return {
        "starts": starts,
        "terms": np.asarray(sparse.indices, np.int32),
        **_encoded(sparse.data, np.diff(starts), store, sparse.data.shape),
    }


def _encoded(
    values: Values, lines: Values, store: Store, shape: tuple[int, ...]
) -> dict[str, Values]:
    if store == "float32":
        return {"values": values.reshape(shape)}
    if store == "float16":
        with np.errstate(over="ignore"):
            small = values.astype(np.float16)
        if not np.isfinite(small).all():
            raise DataError(
                f"store: float16 holds values up to 65,504, a vector has {np.abs(values).max():.6g}"
                "; store float32, or int8, which has a scale for each vector"
            )
        return {"values": small.reshape(shape)}
    peaks = np.zeros(len(lines), np.float32)
    filled = lines > 0
    if filled.any():
        begins = np.concatenate(([0], np.cumsum(lines)))[:-1]
        peaks[filled] = np.maximum.reduceat(np.abs(values), begins[filled])
    scales = (peaks / LARGEST_INT8).astype(np.float32)
    steps = np.repeat(np.where(scales > 0, scales, np.float32(1)), lines)
    rounded = np.clip(np.rint(values / steps), -LARGEST_INT8, LARGEST_INT8).astype(np.int8)
    return {"values": rounded.reshape(shape), "scales": scales}


def dense_rows(arrays: Mapping[str, Values], rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return stored dense vectors ``[n, dim]`` of rows, in their order, as float32."""
    vectors = np.asarray(arrays["values"][rows], np.float32)
    if "scales" in arrays:
        vectors *= np.asarray(arrays["scales"][rows])[:, None]
    return vectors


def token_rows(arrays: Mapping[str, Values], rows: NDArray[np.int64]) -> TokenVectors:
    """Return stored token vectors of texts, in their order, as float32."""
    stored = np.asarray(arrays["bounds"])
    starts, lengths = stored[rows], stored[rows + 1] - stored[rows]
    bounds = np.concatenate(([0], np.cumsum(lengths)))
    if (starts[1:] == stored[rows + 1][:-1]).all():  # neighbours, as a corpus is read: one piece
        first = int(starts[0]) if len(starts) else 0
        places: Any = slice(first, first + int(bounds[-1]))
    else:
        places = np.repeat(starts - bounds[:-1], lengths) + np.arange(bounds[-1])
    values = np.array(arrays["values"][places], np.float32)
    if "scales" in arrays:
        values *= np.asarray(arrays["scales"][places])[:, None]
    return TokenVectors(values, bounds)


def sparse_rows(arrays: Mapping[str, Values], rows: NDArray[np.int64], width: int) -> sp.csr_array:
    """Return stored sparse vectors ``[n, width]`` of rows, in their order, as float32."""
    starts = np.asarray(arrays["starts"])
    lengths = starts[rows + 1] - starts[rows]
    ends = np.concatenate(([0], np.cumsum(lengths)))
    places = np.repeat(starts[rows] - ends[:-1], lengths) + np.arange(ends[-1])
    values = np.asarray(arrays["values"][places], np.float32)
    if "scales" in arrays:
        values *= np.repeat(np.asarray(arrays["scales"][rows]), lengths)
    vectors = sp.csr_array((values, arrays["terms"][places], ends), shape=(len(rows), width))
    if values.size and not values.all():  # int8 rounded some to zero
        vectors.eliminate_zeros()
    return vectors


def put_together(parts: Sequence[Vectors], order: Sequence[NDArray[np.int64]]) -> Vectors:
    """Return one matrix of parts whose rows belong at the positions in ``order``."""
    matrices: Any = parts
    back = np.argsort(np.concatenate(order), kind="stable")
    if isinstance(parts[0], TokenVectors):
        return TokenVectors.joined(matrices, parts[0].dim).rows(back)
    if isinstance(parts[0], np.ndarray):
        dense: Vectors = np.concatenate(matrices)[back]
        return dense
    return sp.csr_array(sp.vstack(matrices, format="csr"))[back]


def mean_cosine(one: Vectors, other: Vectors) -> float:
    """Return the mean cosine between the rows of two matrices; rows of zeros are left out.

    Of token vectors, between those of the same token.
    """
    one, other = _plain(one), _plain(other)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        products = np.einsum("ij,ij->i", one, other, dtype=np.float64)
        squares = [np.einsum("ij,ij->i", each, each, dtype=np.float64) for each in (one, other)]
    else:
        left, right = sp.csr_array(one), sp.csr_array(other)
        products = np.asarray(left.multiply(right).sum(axis=1), np.float64)
        squares = [
            np.asarray(each.multiply(each).sum(axis=1), np.float64) for each in (left, right)
        ]
    lengths = np.sqrt(squares[0] * squares[1])
    some = lengths > 0
    return float((products[some] / lengths[some]).mean()) if some.any() else 1.0


def _plain(vectors: Vectors) -> Dense | sp.csr_array:
    """Return token vectors as one matrix of all tokens, others as they are."""
    return cast(Dense, vectors.values) if isinstance(vectors, TokenVectors) else vectors
