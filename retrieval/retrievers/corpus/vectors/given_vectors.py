"""Vectors that the caller brings: those of a corpus in one piece or several, and of a query."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.encoders.vectors.cache import VectorCache
from sluice.encoders.vectors.forms import checked_vectors
from sluice.retrieval.retrievers.corpus.vectors.corpus_vectors import EncodedCorpus

if TYPE_CHECKING:
    from sluice.indexing import Index


def holds_tokens(index: Index) -> bool:
    """Return whether an index holds a vector for each token of a text, and scores by MaxSim."""
    return index.form.type_name == "tokens"


def as_matrices(vectors: Any) -> Iterable[Any]:
    """Return the vectors of a corpus in parts: float32 numpy, ``csr_array`` or ``TokenVectors``.

    ``vectors`` is one matrix ``[n, dim]`` (numpy, scipy, torch, a list of lists) or the
    ``TokenVectors`` of n texts, or an iterable of such in corpus order, which is left unread.
    """
    if hasattr(vectors, "shape") or hasattr(vectors, "detach"):
        return [_matrix(vectors)]
    if isinstance(vectors, (list, tuple)) and vectors and _is_row(vectors[0]):
        return [_matrix(vectors)]
    if not isinstance(vectors, Iterable):
        raise DataError(f"vectors: a {type(vectors).__name__}; expected an array [n, dim]")
    return map(_matrix, vectors)


@contextmanager
def kept_vectors(vectors: Iterable[Any], work: Path) -> Iterator[EncodedCorpus]:
    """Write vectors that can be read only once into files, and yield them for repeated reading."""
    identity = {"encoder": "given", "store": "float32", "run": f"{os.getpid()}-{uuid.uuid4().hex}"}
    with VectorCache(work, identity) as cache:
        count = 0
        for chunk in vectors:
            size = int(chunk.shape[0])
            cache.put(_numbers(count, size), checked_vectors(chunk, size, "vectors"))
            count += size
        yield EncodedCorpus(cache, cache.locate(_numbers(0, count)))


def one_query(vector: Any, *, tokens: bool) -> Any:
    """Return what a query was encoded as, in the form of several queries.

    That is one vector ``[dim]``, or with ``tokens`` one for each token, ``[tokens, dim]``;
    ``DataError`` for another shape.
    """
    if not tokens:
        return _one_vector(vector)
    if isinstance(vector, TokenVectors):
        if len(vector) != 1:
            raise DataError(f"vector: {len(vector)} texts; search one at a time")
        return vector
    plain: Any = np.asarray(None) if sp.issparse(vector) else _plain(vector)
    if plain.ndim != 2 or plain.dtype.kind not in "fiu" or not plain.size:
        shape = "a sparse matrix" if sp.issparse(vector) else f"shape {plain.shape}"
        raise DataError(
            f"vector: {shape}; this index holds a vector for each token: expected [tokens, dim]"
        )
    return TokenVectors.of([plain], plain.shape[1])


def _one_vector(vector: Any) -> Any:
    matrix = _matrix(vector if sp.issparse(vector) else np.atleast_2d(_plain(vector)))
    if matrix.shape[0] != 1:
        raise DataError(
            f"vector: shape {tuple(matrix.shape)}, expected one vector [dim]; search one at a time"
        )
    return matrix


def _is_row(first: Any) -> bool:
    """Return whether a list that begins so is one matrix, and not several."""
    return not isinstance(first, TokenVectors) and np.ndim(first) < 2


def _matrix(vectors: Any) -> Any:
    if isinstance(vectors, TokenVectors):
        return vectors
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


def _numbers(start: int, count: int) -> NDArray[np.bytes_]:
    """Return keys for vectors without texts: their numbers."""
    return np.array([b"%016d" % number for number in range(start, start + count)], "S16")
