"""MaxSim over stored token vectors: candidates of any retriever, and only the query is encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.retrieval.pipelines.hit import TokenMatch
from sluice.retrieval.pipelines.scorer import Scores
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.pipelines.tracing import note
from sluice.retrieval.retrievers.corpus.token_scores import (
    names_of,
    stored_scores,
    token_matches,
)
from sluice.retrieval.retrievers.corpus.vectors.given_vectors import holds_tokens
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking
from sluice.retrieval.stages.rerankers.stored_vectors import retriever_state

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.state import RetrieverState


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
