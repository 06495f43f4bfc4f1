"""The binary forms of pgvector's types: numpy and scipy to bytes, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sluice.indexing.databases.pgvector.settings import DIMENSIONS, Column

Matrix = sparse.csr_array
HALF_MOST = float(np.finfo(np.float16).max)


def encoded(vectors: Any, column: Column) -> Iterator[bytes]:
    """Yield each row of ``vectors`` in the binary form of the column's type."""
    if column == "sparsevec":
        yield from _sparse(vectors)
        return
    table = encoded_table(vectors, column)
    data, size = table.tobytes(), table.itemsize
    for start in range(0, len(data), size):
        yield data[start : start + size]


def encoded_table(vectors: Any, column: Column) -> NDArray[np.void]:
    """Return dense vectors in the binary form of the column's type, ``[n]`` records."""
    count, width = vectors.shape
    kind = ">f2" if column == "halfvec" else ">f4"
    table = np.zeros(count, np.dtype([("head", ">u2", (2,)), ("values", kind, (width,))]))
    table["head"][:, 0] = width
    table["values"] = vectors
    return table


def _sparse(vectors: Matrix[Any]) -> Iterator[bytes]:
    width = DIMENSIONS["sparsevec"]  # one for all: a vocabulary that grows needs no new table
    terms, weights = vectors.indices.astype(">i4"), vectors.data.astype(">f4")
    for start, stop in zip(vectors.indptr[:-1].tolist(), vectors.indptr[1:].tolist(), strict=True):
        head = np.array([width, stop - start, 0], ">i4").tobytes()
        yield head + terms[start:stop].tobytes() + weights[start:stop].tobytes()


def decoded(rows: Sequence[bytes], column: Column, width: int) -> Any:
    """Return vectors in the binary form of the column's type as float32 ``[n, width]``."""
    if column == "sparsevec":
        return _decoded_sparse(rows, width)
    kind = ">f2" if column == "halfvec" else ">f4"
    vectors = np.zeros((len(rows), width), np.float32)
    for place, row in enumerate(rows):
        vectors[place] = np.frombuffer(row, kind, width, 4)
    return vectors


def _decoded_sparse(rows: Sequence[bytes], width: int) -> Matrix[Any]:
    ends, terms, weights = [0], [], []
    for row in rows:
        count = int.from_bytes(row[4:8], "big")
        ends.append(ends[-1] + count)
        terms.append(np.frombuffer(row, ">i4", count, 12).astype(np.int64))
        weights.append(np.frombuffer(row, ">f4", count, 12 + 4 * count).astype(np.float32))
    data = np.concatenate(weights) if weights else np.zeros(0, np.float32)
    indices = np.concatenate(terms) if terms else np.zeros(0, np.int64)
    wide = max(width, int(indices.max(initial=-1)) + 1)
    return sparse.csr_array((data, indices, np.array(ends)), shape=(len(rows), wide))


def pruned(vectors: Matrix[Any], most: int) -> tuple[Matrix[Any], float]:
    """Return sparse vectors with their ``most`` largest weights each, and the weight lost.

    Of equal weights the lower terms stay.
    """
    lengths = np.diff(vectors.indptr)
    if lengths.max(initial=0) <= most:
        return vectors, 0.0
    kept = np.ones(vectors.nnz, dtype=np.bool_)
    for row in np.flatnonzero(lengths > most).tolist():
        start, stop = vectors.indptr[row : row + 2]
        order = np.argsort(-vectors.data[start:stop], kind="stable")
        kept[start + order[most:]] = False
    lost = float(vectors.data[~kept].sum(dtype=np.float64))
    ends: NDArray[Any] = np.concatenate([[0], np.cumsum(kept)])[vectors.indptr]
    return (
        sparse.csr_array((vectors.data[kept], vectors.indices[kept], ends), shape=vectors.shape),
        lost,
    )
