"""What a retriever gives to a database's documents: vectors, or weights of terms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.exchange.databases.form import Record
from sluice.retrieval.exchange.dense_retrievers import is_decoded
from sluice.retrieval.exchange.query_vectors import terms_of
from sluice.retrieval.exchange.sparse.vectors_folder import refuse_repeated, surveyed
from sluice.retrieval.exchange.sparse_retrievers import holds_terms, idf_of, stored_chunks
from sluice.retrieval.retrievers.corpus.vectors.index_tasks import holds_tokens

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from sluice.retrieval.retrievers.retriever import Retriever

CHUNK = 1_024  # documents held at a time


class Side(ABC):
    """One retriever: the values of rows, and those of queries."""

    kind: ClassVar[str]

    def __init__(self, retriever: Retriever) -> None:
        self.retriever = retriever

    @abstractmethod
    def values(self, rows: NDArray[np.int64]) -> Any:
        """Return a sequence with the value of each row."""

    @abstractmethod
    def queries(self, texts: Sequence[str]) -> list[Any]:
        """Return the value of each query, in the numbers that JSON has."""


class DenseSide(Side):
    """Vectors; those of an index of cosines at length 1."""

    kind = "dense"

    @property
    def dim(self) -> int:
        """How wide the vectors are."""
        return int(self.retriever.index.width or self.retriever.encoder.dim)

    @property
    def metric(self) -> str:
        """How vectors of length 1 or as they are compare: ``ip`` or ``l2``."""
        return "l2" if self.retriever.index.innermost.metric == "l2" else "ip"

    @property
    def decoded(self) -> bool:
        """Whether the index keeps less than the full vectors."""
        return is_decoded(self.retriever.index, self.dim)

    def values(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return ``[len(rows), dim]``."""
        return self._compared(self.retriever.index.documents(rows))

    def queries(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a list of numbers for each query."""
        vectors = np.asarray(self.retriever.encoder.encode_queries(list(texts)), np.float32)
        if len(texts) and vectors.shape[1:] != (self.dim,):
            raise ConfigError(
                f"{self.retriever.path}: queries have {vectors.shape[1]:,} dimensions and "
                f"documents {self.dim:,}; databases compare vectors of one width"
            )
        return [
            [float(f"{value:.9g}") for value in row] for row in self._compared(vectors).tolist()
        ]

    def _compared(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.retriever.index.innermost.metric != "cosine":
            return vectors
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        return (vectors / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


class SparseSide(Side):
    """Weights by term; BM25's idf is in those of the documents."""

    kind = "sparse"

    def __init__(self, retriever: Retriever) -> None:
        super().__init__(retriever)
        self._chunks = stored_chunks(retriever)
        self._terms = terms_of(retriever.encoder)
        refuse_repeated(self._terms)
        self.factors = idf_of(retriever.encoder)

    def largest(self) -> float:
        """Return the largest weight of a document, 0 where there is none."""
        weights = surveyed(self._chunks(), len(self._terms)).largest
        return float((weights if self.factors is None else weights * self.factors).max(initial=0.0))

    def values(self, rows: NDArray[np.int64]) -> list[dict[str, float]]:
        """Return the weights above 0 of each row, by term."""
        matrix = self.retriever.index.documents(rows)
        weights = matrix.data.astype(np.float64)
        if self.factors is not None:
            weights *= self.factors[matrix.indices]
        return self._by_term(matrix, weights)

    def queries(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """Return the weights above 0 of each query, by term, without BM25's idf."""
        matrix = self.retriever.encoder.encode_queries(list(texts))
        weights = matrix.data.astype(np.float64)
        if self.factors is not None:
            weights /= self.factors[matrix.indices]
        return self._by_term(matrix, weights)

    def _by_term(
        self, matrix: csr_array[Any], weights: NDArray[np.float64]
    ) -> list[dict[str, float]]:
        columns, ends = matrix.indices.tolist(), matrix.indptr.tolist()
        values = [float(f"{weight:.9g}") for weight in weights.astype(np.float32).tolist()]
        return [
            {
                self._terms[column]: value
                for column, value in zip(columns[begin:end], values[begin:end], strict=True)
                if value > 0
            }
            for begin, end in pairwise(ends)
        ]


def sides_of(retrievers: Sequence[Retriever]) -> Mapping[str, Side]:
    """Return what one or two retrievers give, by kind; ``ConfigError`` for two of one kind."""
    sides: dict[str, Side] = {}
    for retriever in retrievers:
        side = _side_of(retriever)
        if side.kind in sides:
            raise ConfigError(
                f"{retriever.path}: {side.kind}, and so is {sides[side.kind].retriever.path}; "
                "documents take the vectors of one dense and one sparse retriever"
            )
        sides[side.kind] = side
    return sides


def records(sides: Sequence[Side]) -> Iterator[Record]:
    """Yield the live documents of the first side, with the values of all, a chunk at a time."""
    store = sides[0].retriever.store
    live = np.delete(np.arange(store.rows_total), store.deleted)
    for start in range(0, len(live), CHUNK):
        rows = live[start : start + CHUNK]
        documents = store.documents(rows)
        values = {sides[0].kind: sides[0].values(rows)}
        for side in sides[1:]:
            places = side.retriever.store.rows([document.id for document in documents])
            if len(absent := np.flatnonzero(places < 0)):
                raise DataError(
                    f"{side.retriever.path}: no document {documents[absent[0]].id!r}, which "
                    f"{store.path} has; expected two retrievers of the same documents"
                )
            values[side.kind] = side.values(places)
        for at, document in enumerate(documents):
            yield Record(document, **{_FIELDS[kind]: each[at] for kind, each in values.items()})


_FIELDS = {"dense": "vector", "sparse": "terms"}


def _side_of(retriever: Retriever) -> Side:
    from sluice.indexing import PseudoQueryIndex

    index = retriever.index
    form = index.form
    reason = ""
    if holds_tokens(index):
        reason = "its index holds a vector for each token; export npz or parquet"
    elif index.by_passages:
        reason = "its documents are indexed in passages; export an index of whole documents"
    elif issubclass(form, PseudoQueryIndex):
        reason = "its index holds several vectors for each document"
    elif holds_terms(index):
        return SparseSide(retriever)
    elif index.innermost.metric is None:
        reason = f"its index is a {type(index).__name__}, which holds no vectors"
    if reason:
        raise ConfigError(
            f"{retriever.path}: {reason}; a database's documents have one vector each"
        )
    return DenseSide(retriever)
