"""Reranking by vectors that an index holds: only the query is encoded; a pair head, or MaxSim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.encoders.table import own_form
from sluice.retrieval.pipelines.hit import TokenMatch
from sluice.retrieval.pipelines.scorer import Scores
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.pipelines.tracing import note
from sluice.retrieval.retrievers.corpus.token_scores import (
    names_of,
    stored_scores,
    token_matches,
)
from sluice.retrieval.retrievers.corpus.vectors.index_tasks import holds_tokens
from sluice.retrieval.retrievers.retriever import retriever_of
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking

if TYPE_CHECKING:
    from sluice.encoders.dense.error_adapter import PairHead
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
    if own_form(state.encoder) not in (None, "tokens"):
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


class PairHeadScorer:
    """Scores candidates by the pair head of ``model`` over the stored vectors of ``retriever``.

    The head was trained with the encoder whose vectors the retriever holds (``loss: {type: dse}``)
    and lies beside it, in ``pair_head/``. No transformer runs but for the query: a pair costs
    ``4 dim hidden`` multiplications. Candidates that the retriever does not know stand below the
    others, in the order they had. (Barkan et al., 2020, Distilled Sentence Embedding.)
    """

    def __init__(
        self, retriever: Stage, /, model: Annotated[str, "The model whose head scores pairs."]
    ) -> None:
        if not isinstance(retriever, Stage):
            raise ConfigError(f"pair_head: {type(retriever).__name__}; expected a retriever")
        if not model:
            raise ConfigError("pair_head: model is empty; expected the folder of a model")
        self.stages = (retriever,)
        self.model = model

    @cached_property
    def head(self) -> PairHead:
        """The head, loaded when it is first needed."""
        from sluice.encoders.dense.error_adapter import PairHead
        from sluice.encoders.model_files.locate import model_folder

        return PairHead.load(model_folder(self.model))

    def score_lists(
        self, queries: Queries, heads: Mapping[str, Ranking], documents: Texts | None
    ) -> dict[str, Scores]:
        """Return the scores of each query's candidates, float32."""
        found: dict[str, Scores] = {}
        for block in vector_blocks(self.stages[0], queries, heads, "pair_head"):
            vectors: tuple[Any, Any] = block.vectors, block.documents
            if not all(isinstance(each, np.ndarray) for each in vectors):
                raise ConfigError(
                    f"pair_head: {self.stages[0].name} has sparse vectors; expected the dense ones "
                    "that the head was trained on"
                )
            scores = np.zeros(0, np.float32)
            if len(block.places):
                scores = self.head.score(block.vectors[block.owners], block.documents[block.places])
            found |= block.spread(scores)
        return found


pair_head = PairHeadScorer  # ``pair_head(dense, model='runs/dse', depth=100)`` in a pipeline


class StoredMaxSim:
    """Scores candidates as ``retriever`` would: by the token vectors that its index holds.

    ``bm25 % 200 >> max_sim(tokens, depth=200)`` is late interaction with another retriever as its
    first stage: the scores are those of an exact search in ``tokens``, for the candidates alone.
    No text is encoded but the query's, and those of candidates that ``tokens`` does not have;
    where no store has their texts they stand below the others, in the order they had. A blank
    query changes nothing. (Khattab and Zaharia, 2020, ColBERT, eq. 3.)
    """

    name = "max_sim"

    def __init__(self, retriever: Stage, /) -> None:
        if not isinstance(retriever, Stage):
            raise ConfigError(
                f"max_sim: {type(retriever).__name__}; expected a retriever of token vectors"
            )
        self.stages = (retriever,)

    @property
    def approximates(self) -> Stage:
        """The retriever whose own search finds the best of all documents by these scores."""
        return self.stages[0]

    def score_lists(
        self, queries: Queries, heads: Mapping[str, Ranking], documents: Texts | None
    ) -> dict[str, Scores]:
        """Return the scores of each query's candidates, float32."""
        state = self._state()
        scores = {query: np.zeros(len(head), np.float32) for query, head in heads.items()}
        asked = [query for query in heads if queries[query].strip() and len(heads[query])]
        if not asked:
            return scores
        vectors = state.encoder.encode_queries([queries[query] for query in asked])
        rows = {query: state.store.rows(list(heads[query].doc_ids)) for query in asked}
        absent = {
            doc: None
            for query in asked
            for doc, row in zip(heads[query].doc_ids, rows[query].tolist(), strict=True)
            if row < 0
        }
        fresh = _Encoded(state, list(absent), documents) if absent else None
        for place, query in enumerate(asked):
            known = rows[query] >= 0
            one = vectors[place : place + 1]
            scores[query][known] = stored_scores(state.index, one, rows[query][known])
            if fresh is not None and not known.all():
                names = [heads[query].doc_ids[at] for at in np.flatnonzero(~known).tolist()]
                scores[query][~known] = fresh.scores(one, names, scores[query][known])
        if absent:
            note({"not stored": len(absent)})
        return scores

    def matches_of(self, query: str, doc_id: str, documents: Texts | None) -> list[TokenMatch]:
        """Return which of the document's tokens each of the query's met, see ``TokenMatch``."""
        state = self._state()
        if doc_id in state.store:
            return state.token_reader.matches(query, [doc_id]).get(doc_id, [])
        fresh = _Encoded(state, [doc_id], documents)
        if fresh.vectors is None or not query.strip():
            return []
        asked = state.encoder.encode_queries([query])
        names = names_of(state.encoder, query, "query")
        other = names_of(state.encoder, fresh.texts[0], "document")
        return token_matches(asked.text(0), fresh.vectors.text(0), names, other)

    def _state(self) -> RetrieverState:
        state = retriever_state(self.approximates, "max_sim")
        if hooks_of(state.encoder).similarity == "attention":
            raise ConfigError(
                f"max_sim: {state.path} scores by attention to a document's vectors; search it by "
                f"itself: {state.name}"
            )
        if hooks_of(state.encoder).decode_queries is not None:
            raise ConfigError(
                f"max_sim: {state.path} is searched by what a model writes and has no vectors; "
                f"search it by itself: {state.name}"
            )
        if not holds_tokens(state.index):
            raise ConfigError(
                f"max_sim: {state.path} holds one vector a document; expected a retriever with an "
                "encoder of type tokens (dot(...) scores single vectors)"
            )
        return state


class _Encoded:
    """The token vectors of documents that the retriever lacks, encoded from their texts."""

    def __init__(
        self, state: RetrieverState, doc_ids: Sequence[str], documents: Texts | None
    ) -> None:
        from sluice.indexing import TokenIndex

        self.rows = {doc: row for row, doc in enumerate(doc_ids)}
        self.texts: list[str] = []
        self.vectors: TokenVectors | None = None
        self.index = TokenIndex(store="float32")
        if documents is not None:
            self.texts = list(documents.texts(list(doc_ids)))
            self.vectors = state.encoder.encode_documents(self.texts)
            self.index.add(self.vectors)

    def scores(self, query: Any, doc_ids: Sequence[str], others: Scores) -> Scores:
        """Return the scores of documents; without texts one below those of the ``others``."""
        if self.vectors is None:
            below = np.nextafter(others.min(), np.float32("-inf")) if len(others) else 0.0
            return np.full(len(doc_ids), max(below, np.finfo(np.float32).min), np.float32)
        rows = np.array([self.rows[doc] for doc in doc_ids], np.int64)
        return stored_scores(self.index, query, rows)


max_sim = StoredMaxSim  # ``bm25 % 200 >> max_sim(tokens, depth=200)`` in a pipeline
