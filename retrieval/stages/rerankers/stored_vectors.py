"""Candidates by the vectors that a retriever's index holds: nothing is encoded but the queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.corpus.vectors.given_vectors import holds_tokens
from sluice.retrieval.retrievers.retriever import retriever_of
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.state import RetrieverState

CANDIDATES = 8_192  # of a block: their vectors are in memory together


class VectorBlock(NamedTuple):
    """Some queries with their candidates' vectors.

    ``owners`` and ``places`` ``[pairs]`` are of each candidate that the retriever knows: the row of
    its query in ``vectors`` and its own row in ``documents``. ``known`` has for each query which of
    its candidates these are. ``metric`` is the index's: ip, cosine or l2.
    """

    queries: Sequence[str]
    known: Sequence[NDArray[np.bool_]]
    vectors: Any  # [queries, dim], dense or sparse
    documents: Any  # [distinct documents, dim]
    owners: NDArray[np.int64]
    places: NDArray[np.int64]
    metric: str

    def spread(self, scores: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Return the scores by query; unknown candidates stand just below the lowest known one.

        They tie, so that they keep their order. A query without any known one has zeros.
        """
        stops = np.cumsum([int(known.sum()) for known in self.known])
        parts = np.split(scores, stops[:-1]) if len(stops) else []
        by_query = {}
        for query, known, part in zip(self.queries, self.known, parts, strict=True):
            below = np.nextafter(part.min(), np.float32("-inf")) if len(part) else 0.0
            filled = np.full(len(known), max(below, np.finfo(np.float32).min), np.float32)
            filled[known] = part
            by_query[query] = filled
        return by_query


def vector_blocks(
    retriever: Stage, queries: Queries, heads: Mapping[str, Ranking], caller: str
) -> Iterator[VectorBlock]:
    """Yield the queries of ``heads`` in blocks, each with one look into the index.

    Queries of white space, which have no vector, have no known candidates. ``ConfigError`` unless
    ``retriever`` is one whose index holds one vector a document.
    """
    state = retriever_state(retriever, caller)
    check_single_vectors(state, caller)
    with_text = [query for query in heads if queries[query].strip()]
    blank = [query for query in heads if not queries[query].strip()]
    vectors: Any = ()
    if with_text:
        vectors = state.encoder.encode_queries([queries[query] for query in with_text])
    start = 0
    for stop in _stops([len(heads[query]) for query in with_text]):
        block = with_text[start:stop]
        yield _block(state, block, [heads[query] for query in block], vectors[start:stop])
        start = stop
    if blank:
        none = np.zeros(0, np.int64)
        unknown = [np.zeros(len(heads[query]), np.bool_) for query in blank]
        empty = np.zeros((0, 0), np.float32)
        yield VectorBlock(blank, unknown, empty, empty, none, none, "ip")


def retriever_state(stage: Stage, caller: str) -> RetrieverState:
    """Return the state of the retriever that a stage passes on; ``ConfigError`` without one."""
    retriever = retriever_of(stage)
    if retriever is None:
        raise ConfigError(
            f"{caller}: {stage.name!r} is a {type(stage).__name__}; expected a retriever, whose "
            "index has the vectors"
        )
    return retriever.state


def check_single_vectors(state: RetrieverState, caller: str) -> None:
    """Raise ``ConfigError`` for a retriever of passages or of token vectors."""
    if holds_tokens(state.index):
        raise ConfigError(
            f"{caller}: {state.path} holds a vector for each token, and {caller} compares single "
            f"ones; score by max_sim({state.name}) instead"
        )
    if hooks_of(state.encoder).decode_queries is not None:
        raise ConfigError(
            f"{caller}: {state.name} is searched by what a model writes, and {caller} compares "
            f"vectors; search it by itself: {state.name}"
        )
    if hooks_of(state.encoder).similarity == "q_net":
        raise ConfigError(
            f"{caller}: a query of {state.name} is a network, and {caller} compares vectors; "
            f"search it by itself: {state.name}"
        )
    if hooks_of(state.encoder).similarity == "attention":
        raise ConfigError(
            f"{caller}: {state.name} has several vectors a document, and {caller} compares single "
            f"ones; search it by itself: {state.name}"
        )
    if state.index.by_passages:
        raise ConfigError(
            f"{caller}: {state.path} indexes passages, of which a document has several vectors; "
            "build the retriever without passages, or with aggregate: mean"
        )


def _stops(sizes: Sequence[int]) -> Iterator[int]:
    """Yield where blocks of at most ``CANDIDATES`` end, one query at least in each."""
    held = 0
    for place, size in enumerate(sizes):
        if held and held + size > CANDIDATES:
            yield place
            held = 0
        held += size
    if sizes:
        yield len(sizes)


def _block(
    state: RetrieverState, queries: Sequence[str], rankings: Sequence[Ranking], vectors: Any
) -> VectorBlock:
    lengths = np.array([len(ranking) for ranking in rankings])
    rows = state.store.rows([doc for ranking in rankings for doc in ranking.doc_ids])
    known = rows >= 0
    distinct, places = np.unique(rows[known], return_inverse=True)
    owners = np.repeat(np.arange(len(rankings)), lengths)[known]
    documents = state.index.documents(distinct)
    metric = state.index.metric or "ip"
    parts = np.split(known, np.cumsum(lengths)[:-1])
    return VectorBlock(queries, parts, vectors, documents, owners, places.reshape(-1), metric)
