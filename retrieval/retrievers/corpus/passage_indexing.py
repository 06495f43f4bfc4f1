"""Indexes documents by their passages: the first build, and later additions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.retrieval.documents.document import Document, document_input
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.execution.executor import LOCAL, Executor, begin_alone
from sluice.retrieval.retrievers.corpus.encoding import Encoding, Reading
from sluice.retrieval.retrievers.corpus.late_chunks import check_one_process
from sluice.retrieval.retrievers.corpus.passages import MEAN_OF_TOKENS, Passages

if TYPE_CHECKING:
    from sluice.indexing import Index

log = logging.getLogger("sluice")

CHUNK = 4_096  # documents cut and encoded at a time when they are added to an index
LEARNS = "the encoder learns from the whole corpus"
Rows = NDArray[np.int64]


def mean_vectors(vectors: Any, counts: NDArray[np.int64], *, normalize: bool) -> Any:
    """Return one vector a document, the mean of its ``counts`` consecutive passages.

    ``counts`` ``[documents]`` are 1 or more and add up to the rows of ``vectors``. A document of
    one passage keeps exactly its vector. With ``normalize`` the means of several dense vectors are
    scaled to unit length (a mean of zero stays zero).
    """
    if isinstance(vectors, TokenVectors):
        if (counts > 1).any():
            raise ConfigError(MEAN_OF_TOKENS)
        return vectors
    if not isinstance(vectors, np.ndarray):
        return _sparse_means(vectors, counts)
    several = np.flatnonzero(counts > 1)
    starts = np.cumsum(counts) - counts
    means = vectors[starts]
    if len(several):
        # Per document, not by a running sum: a mean depends on its own passages alone.
        for row in several:
            part = vectors[starts[row] : starts[row] + counts[row]]
            mean = part.mean(axis=0, dtype=np.float64)
            length = float(np.sqrt(mean @ mean)) if normalize else 1.0
            means[row] = mean / (length or 1.0)
    return means


def _sparse_means(vectors: Any, counts: NDArray[np.int64]) -> Any:
    from scipy import sparse

    total = int(counts.sum())
    shares = np.repeat(1.0 / counts, counts)
    ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    choose = sparse.csr_array((shares, np.arange(total), ends), shape=(len(counts), total))
    means: Any = sparse.csr_array(choose @ vectors.astype(np.float64)).astype(np.float32)
    means.sort_indices()
    return means


class PassageDocuments:
    """All passages in the order of the store's rows; ``len`` is their number.

    Documents are cut each time they are read: only the ``counts`` stay in memory.
    """

    def __init__(self, passages: Passages, encoder: Any, documents: DocumentStore) -> None:
        self._passages, self._encoder, self._documents = passages, encoder, documents
        self._counts: Rows | None = None

    @property
    def counts(self) -> Rows:
        """The number of passages of each document ``[documents]``."""
        if self._counts is None:
            for _ in self:
                pass
        counts = self._counts
        return np.zeros(0, dtype=np.int64) if counts is None else counts

    def __len__(self) -> int:
        return int(self.counts.sum())

    def __iter__(self) -> Iterator[Document]:
        counts: list[int] = []
        for parts in self._passages.split(self._encoder, self._documents):
            counts.append(len(parts))
            yield from parts
        self._counts = np.array(counts, dtype=np.int64)

    def documents(self, rows: Rows) -> list[Document]:
        """Return passages by their numbers, in the order of ``rows``."""
        ends = np.cumsum(self.counts)
        owners = np.searchsorted(ends, rows, side="right")
        distinct, places = np.unique(owners, return_inverse=True)
        whole = self._documents.documents(distinct)
        cut = list(self._passages.split(self._encoder, whole))
        numbers = rows - (ends - self.counts)[owners]
        return [
            cut[place][number]
            for place, number in zip(places.tolist(), numbers.tolist(), strict=True)
        ]


def filled_by_passages(
    passages: Passages,
    encoder: Any,
    documents: DocumentStore,
    index: Index | None,
    *,
    filled_index: Callable[..., Index],
    work: Path,
    encoding: Encoding | None = None,
    queries: Mapping[str, str] | None = None,
    readings: list[Reading] | None = None,
    executor: Executor = LOCAL,
) -> Index:
    """Return an index of every document of the store, in row order, made from their passages.

    For ``aggregate="max"`` it is a ``PassageIndex`` over ``index``, else ``index`` itself.
    ``filled_index`` is the function of ``fill_index``, passed in to avoid a circular import: it
    fills an index with passages as with documents. The other arguments are its own.
    """
    from sluice.indexing.wrappers.passages import PassageIndex
    from sluice.indexing.wrappers.sharded import ShardedIndex

    if passages.late:
        check_one_process(encoding, executor=executor)
    encoder = passages.reader(encoder)
    by_best = isinstance(index, PassageIndex)
    if by_best and passages.aggregate != "max":
        raise ConfigError(
            f"passages.aggregate: {passages.aggregate!r} makes one vector of a document, and the "
            "index is of type 'passages'; give it the index that is inside"
        )
    inner = index.inner if isinstance(index, PassageIndex) else index  # or a recipe, or None
    parts: Any = PassageDocuments(passages, encoder, documents)  # read as a store of documents
    if passages.aggregate == "mean":
        normalize = _normalizes(encoder)
        with _mean_vectors(
            encoder, parts, work, encoding, readings, executor, normalize=normalize
        ) as means:
            filled = filled_index(encoder, documents, inner, means, work=work, queries=queries)
    else:
        rows = None
        if isinstance(inner, ShardedIndex) and passages.aggregate == "max":
            rows, inner = inner.shard_rows, inner.of_passages(parts.counts)
        filled = filled_index(
            encoder, parts, inner, work=work, encoding=encoding, queries=queries, readings=readings,
            executor=executor,
        )  # fmt: skip
        if rows is not None and isinstance(filled, ShardedIndex):
            filled = filled.by_documents(rows, parts.counts)
        elif passages.aggregate == "max":
            filled = PassageIndex.wrap(filled, parts.counts)
    log.info("index: %s passages of %s documents", f"{len(parts):,}", f"{len(documents):,}")
    return filled


@contextmanager
def _mean_vectors(
    encoder: Any,
    parts: Any,
    work: Path,
    encoding: Encoding | None,
    readings: list[Reading] | None,
    executor: Executor,
    *,
    normalize: bool,
) -> Iterator[Iterable[Any]]:
    """Yield the documents' vectors, the means of their passages', in chunks."""
    from sluice.retrieval.retrievers.corpus.vectors.corpus_vectors import encoded_corpus

    learner = hooks_of(encoder).learner
    if learner is not None:
        begin_alone("index", executor, LEARNS)
        fitted = learner.fit_in_parts(document_input(encoder, each) for each in parts)
        yield _means(fitted, parts.counts, normalize=normalize)
        return
    encoding = encoding or Encoding()
    with encoded_corpus(encoder, parts, work, encoding, readings, executor) as encoded:
        yield _means(encoded, parts.counts, normalize=normalize)


def _means(chunks: Any, counts: Rows, *, normalize: bool) -> Iterator[Any]:
    """Yield the documents' means from chunks of passages, which may end within a document."""
    ends = np.cumsum(counts)
    first = done = 0  # document and passage that the next mean begins with
    held: list[Any] = []
    read = 0
    for chunk in chunks:
        held.append(chunk)
        read += int(chunk.shape[0])
        last = int(np.searchsorted(ends, read, side="right"))
        if last > first:
            whole = _stacked(held)
            size = int(ends[last - 1]) - done
            yield mean_vectors(whole[:size], counts[first:last], normalize=normalize)
            held, first, done = [whole[size:]], last, done + size


def _stacked(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    from scipy import sparse

    return sparse.vstack(parts, format="csr")


def index_passages(
    passages: Passages, encoder: Any, documents: DocumentStore, index: Any, rows: Rows
) -> None:
    """Encode and index rows that the store has and the index does not."""
    encoder = passages.reader(encoder)
    learner = hooks_of(encoder).learner
    grow = encoder.encode_documents if learner is None else learner.add_documents
    for inputs, counts in passage_inputs(passages, encoder, documents, rows):
        vectors = grow(inputs)
        if passages.aggregate == "max":
            index.add(vectors, counts)
        else:  # "first" is the mean of one
            index.add(mean_vectors(vectors, counts, normalize=_normalizes(encoder)))


def passage_inputs(
    passages: Passages, encoder: Any, documents: DocumentStore, rows: Rows
) -> Iterator[tuple[list[Any], Rows]]:
    """Yield the encoder inputs of rows' passages, and how many are of each document."""
    for start in range(0, len(rows), CHUNK):
        chunk = documents.documents(rows[start : start + CHUNK])
        cut = list(passages.split(encoder, chunk))
        counts = np.array([len(parts) for parts in cut], dtype=np.int64)
        yield [document_input(encoder, part) for part in chain.from_iterable(cut)], counts


def _normalizes(encoder: Any) -> bool:
    return hooks_of(encoder).similarity == "cosine"
