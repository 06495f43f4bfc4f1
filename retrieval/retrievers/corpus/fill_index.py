"""Fills an index with documents: encodes, trains, chooses, adds, moves; and later changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.progress import progress
from sluice.encoders.foundation.tokens import TokenCounts, TokenVectors, counting_tokens
from sluice.encoders.table import own_form
from sluice.indexing.databases.index import DatabaseIndex
from sluice.indexing.index import Index
from sluice.indexing.table import INDEXES, KNOWN, default_spec
from sluice.retrieval.documents.document import document_input
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.execution.executor import LOCAL, Executor, begin_alone, end_planning
from sluice.retrieval.retrievers.corpus.encoding import Encoding, Reading, warn_of_cuts
from sluice.retrieval.retrievers.corpus.index_queries import (
    check_written,
    chooses,
    chosen_index,
    learnt_queries,
    measure_by_queries,
    sequences,
    written_index,
)
from sluice.retrieval.retrievers.corpus.passage_indexing import (
    LEARNS,
    filled_by_passages,
    index_passages,
    passage_inputs,
)
from sluice.retrieval.retrievers.corpus.passages import Passages

MOVED = 8_192


def moved_index(index: Index, target: Index, documents: DocumentStore) -> Index:
    """Return ``target`` with the vectors of another index, by row; deleted rows are zeros there.

    One that learns from a sample of the vectors is trained first.
    """
    from sluice.retrieval.retrievers.corpus.vectors.corpus_vectors import sampled_rows

    deleted = index.deleted_rows
    live = np.ones(index.rows, dtype=np.bool_)
    live[deleted] = False
    if isinstance(target, DatabaseIndex):
        target.described = documents.described
    rows = np.flatnonzero(live)
    if wanted := target.training_rows(len(rows)) if len(rows) else 0:
        target.train(index.documents(rows[sampled_rows(len(rows), wanted, target.seed)]))
    with progress("index", index.rows, "documents", show=index.rows > MOVED) as advance:
        for start in range(0, index.rows, MOVED):
            among = live[start : start + MOVED]
            stored = index.documents(start + np.flatnonzero(among))
            # The product leaves a row of zeros where there is no vector.
            places = sparse.eye_array(len(among), dtype=np.float32, format="csc")[:, among]
            advance(len(target.add(places @ stored)))
    if len(deleted):
        target.delete(deleted)
    return target


CHUNK = 16_384  # documents added at a time: bounds memory while indexing


def filled_index(
    encoder: Any,
    documents: DocumentStore,
    index: Index | None,
    vectors: Iterable[Any] | None = None,
    *,
    work: Path,
    encoding: Encoding | None = None,
    queries: Mapping[str, str] | None = None,
    passages: Passages | None = None,
    readings: list[Reading] | None = None,
    executor: Executor = LOCAL,
) -> Index:
    """Return an index of every document of the store, in row order.

    ``work`` is a folder for files that are needed until the index is saved; a run continues with
    what a killed one left there. An index that measures (``type: auto``, or a gather of token
    vectors) uses ``queries``, or documents without them; one that learns (``query_graph``) needs
    them. How much the encoder reads of what it encodes is appended to ``readings``. ``executor``
    shares out what can be done by tasks.
    """
    if index is not None and not chooses(index) and index.rows:
        raise ConfigError(f"index: it has {index.rows:,} rows already; expected an empty index")
    if passages is not None:
        return filled_by_passages(
            passages, encoder, documents, index, filled_index=filled_index, work=work,
            encoding=encoding, queries=queries, readings=readings, executor=executor,
        )  # fmt: skip
    hooks = hooks_of(encoder)
    if index is not None:
        check_own_index(encoder, index)
    if hooks.one_way and index is not None:
        check_one_way(index, "index")
    if vectors is None and hooks.learner is not None:
        begin_alone("index", executor, LEARNS)
        fitted = _fitted(hooks.learner.fit_in_parts, encoder, documents, index, work)
        measure_by_queries(fitted, encoder, queries)
        return fitted
    if vectors is not None:
        _begin_given(encoder, executor)
    if index is None:
        index = default_index(encoder)
    elif vectors is None and not chooses(index) and isinstance(hooks.dim, int):
        index.check_fit(hooks.dim, len(documents))
    encoding = encoding or Encoding()
    _describe(index, documents, work)
    if written_index(encoder) is not None and vectors is None:
        begin_alone("index", executor, "documents are token sequences, not vectors")
        return _fill(index, sequences(encoder, documents), len(documents), work)
    with _found(encoder, documents, index, vectors, work, encoding, readings, executor) as found:
        shards = _by_tasks(index, found, work, executor)
        end_planning("index")
        if chooses(index):
            filled = chosen_index(encoder, index, found, queries, work)
        else:
            queries = learnt_queries(index, encoder, queries or {})
            filled = shards or _fill(index, found, len(documents), work)
            measure_by_queries(filled, encoder, queries)
    if filled.rows != len(documents):
        raise DataError(f"vectors: {filled.rows:,} for {len(documents):,} documents; give one each")
    return filled


def _begin_given(encoder: Any, executor: Executor) -> None:
    """Begin with vectors that are given; ``ConfigError`` if the encoder would prune its own."""
    fitted = hooks_of(encoder).fitted_terms
    if fitted is not None and fitted.needs_floors:
        raise ConfigError(
            f"encoder.prune_quantile: {fitted.prune_quantile}; the documents' vectors are given, "
            "so nothing would be pruned: leave it out"
        )
    begin_alone("index", executor, "the documents' vectors are given")


def _fitted(
    fit: Callable[[Iterable[Any]], Iterable[Any]],
    encoder: Any,
    documents: DocumentStore,
    index: Index | None,
    work: Path,
) -> Index:
    """Fit the encoder to the documents, and return the index of their vectors."""
    from sluice.indexing import InvertedIndex

    filled = InvertedIndex() if index is None else index
    _describe(filled, documents, work)
    for part in fit(document_input(encoder, each) for each in documents):
        filled.add(part)
    return filled


def default_index(encoder: Any) -> Index:
    """Return an empty index for an encoder's kind of vectors."""
    form: str | None = own_form(encoder)
    if form in (None, "tokens"):  # what it makes decides
        learns = hooks_of(encoder).learner is not None
        vectors = None if learns else encoder.encode_documents([])
        tokens, dense = isinstance(vectors, TokenVectors), isinstance(vectors, np.ndarray)
        form = "tokens" if tokens else "dense" if dense else "sparse"
    index: Index = build(default_spec(str(form)) or {}, INDEXES, where="index")
    return index


@contextmanager
def _found(
    encoder: Any,
    documents: DocumentStore,
    index: Index,
    vectors: Iterable[Any] | None,
    work: Path,
    encoding: Encoding,
    readings: list[Reading] | None,
    executor: Executor,
) -> Iterator[Any]:
    """Yield the vectors in chunks; as an ``EncodedCorpus`` where the index looks at them before."""
    from sluice.retrieval.retrievers.corpus.vectors.corpus_vectors import encoded_corpus
    from sluice.retrieval.retrievers.corpus.vectors.index_tasks import kept_vectors

    if vectors is None:
        with encoded_corpus(encoder, documents, work, encoding, readings, executor) as encoded:
            yield encoded
    elif chooses(index) or index.training_rows(len(documents)):
        with kept_vectors(vectors, work) as kept:
            yield kept
    else:
        yield vectors


def own_index(encoder: Any) -> Index | None:
    """Return an empty index that scores every document, for an encoder of a score of its own.

    None for an encoder whose vectors any index of their kind compares.
    """
    form = own_form(encoder)
    return None if form in (None, "tokens") else default_index(encoder)


def check_own_index(encoder: Any, index: Any) -> None:
    """Raise ``ConfigError`` for a score of its own, and an index that computes another."""
    from sluice.indexing import GraphIndex, PseudoQueryIndex

    check_written(encoder, index)
    similarity = hooks_of(encoder).similarity
    if similarity == "q_net" and index.type_name != GraphIndex.type_name:
        raise ConfigError(
            f"index: {type(index).__name__} compares vectors, and this encoder's queries are "
            "networks; expected a GraphIndex ({type: graph}, or graph with mode: exhaustive)"
        )
    if similarity == "attention" and not isinstance(index, PseudoQueryIndex):
        raise ConfigError(
            f"index: {type(index).__name__} does not score by attention to a document's several "
            "vectors, as this encoder does; expected a PseudoQueryIndex ({type: pseudo_queries})"
        )
    form, known = own_form(encoder), KNOWN.get(index.type_name)
    if form not in (None, "tokens") and known and known.holds and form not in known.holds:
        raise ConfigError(
            f"index: {type(index).__name__} has another score than this encoder; expected "
            f"{default_spec(str(form))}, or leave index out"
        )


def check_one_way(index: Any, where: str) -> None:
    """Raise ``ConfigError`` unless an index, or a recipe, compares by whole inner products."""
    from sluice.indexing import FunnelIndex

    if index.metric not in (None, "ip"):
        raise ConfigError(
            f"{where}.metric: {index.metric}: this encoder's vectors of queries and of documents "
            "are of two kinds, which have inner products alone; metric: ip"
        )
    while isinstance(index, FunnelIndex):
        if index.dimensions is not None:
            raise ConfigError(
                f"{where}.dimensions: {index.dimensions}: the first dimensions of this encoder's "
                "vectors are not vectors of their own; leave it out"
            )
        index, where = index.inner, f"{where}.first"


def _by_tasks(index: Any, vectors: Any, work: Path, executor: Executor) -> Index | None:
    """Let the executor's workers fill shards; None where there are none, or no such workers."""
    from sluice.indexing.wrappers.sharded import ShardedIndex
    from sluice.retrieval.retrievers.corpus.vectors.corpus_vectors import TASKS, EncodedCorpus
    from sluice.retrieval.retrievers.corpus.vectors.index_tasks import fill_shards

    shared = executor.remote and isinstance(index, ShardedIndex)
    if not (shared and isinstance(vectors, EncodedCorpus) and len(vectors)):
        return None
    return fill_shards(index, vectors, work / TASKS, executor)


def _fill(index: Index, vectors: Any, count: int, work: Path) -> Index:
    """Train an index that wants it on a sample of all vectors, then add them chunk by chunk."""
    wanted = index.training_rows(count) if count else 0
    if wanted:
        index.train(vectors.sample(wanted, index.seed))
    index.spool(work)
    with progress("index", count, "documents", show=count > CHUNK) as advance:
        for chunk in vectors:
            advance(len(index.add(chunk)))
    return index


def index_rows(
    encoder: Any,
    documents: DocumentStore,
    index: Index,
    rows: NDArray[np.int64],
    passages: Passages | None = None,
) -> None:
    """Encode and index rows that the store has and the index does not."""
    if passages is not None:
        index_passages(passages, encoder, documents, index, rows)
        return
    _describe(index, documents)
    learner = hooks_of(encoder).learner
    grow = encoder.encode_documents if learner is None else learner.add_documents
    with counting_tokens() as parts:
        for chunk in _inputs(encoder, documents, rows):
            index.add(grow(chunk))
    counts = TokenCounts.joined(parts, len(rows))
    if counts is not None:
        warn_of_cuts("added", Reading.from_lengths(encoder, counts.full), cure=False)


def _describe(index: Any, documents: Any, work: Path | None = None) -> None:
    """Let an index in a database store ids and metadata, unless its rows are passages.

    In ``work`` it notes what a killed build has stored already.
    """
    from sluice.indexing.databases.index import DatabaseIndex

    if isinstance(index, DatabaseIndex):
        index.described = documents.described if isinstance(documents, DocumentStore) else None
        if work is not None:
            index.spool(work)


def forget_rows(
    encoder: Any,
    documents: DocumentStore,
    index: Index,
    rows: NDArray[np.int64],
    passages: Passages | None = None,
) -> None:
    """Delete rows from the index and from what the encoder counted; the store still has them."""
    learner = hooks_of(encoder).learner
    if learner is not None:
        parts = None if passages is None else passage_inputs(passages, encoder, documents, rows)
        cut = _inputs(encoder, documents, rows) if parts is None else (each for each, _ in parts)
        for chunk in cut:
            learner.remove_documents(chunk)
    index.delete(rows)


def _inputs(encoder: Any, documents: DocumentStore, rows: NDArray[np.int64]) -> Iterator[list[Any]]:
    for start in range(0, len(rows), CHUNK):
        chunk = documents.documents(rows[start : start + CHUNK])
        yield [document_input(encoder, document) for document in chunk]
