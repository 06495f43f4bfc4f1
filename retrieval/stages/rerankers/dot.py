"""Scores candidates by the vectors that a retriever's index holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.pipelines.scorer import Scores
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.retrievers.corpus.vectors.index_tasks import holds_tokens
from sluice.retrieval.retrievers.retriever import retriever_of
from sluice.retrieval.runs.queries import DEPTH, Queries
from sluice.retrieval.runs.run import Ranking
from sluice.retrieval.stages.rerankers.stored_vectors import (
    StoredMaxSim,
    VectorBlock,
    vector_blocks,
)


class VectorDot:
    """Scores candidates as ``retriever`` would: query vector against stored document vector.

    The similarity is the index's: inner product, cosine or negative squared distance. Dense scores
    are exactly those of ``FlatIndex``, so its own hits keep theirs. Candidates that the retriever
    does not know stand below the others in the order they had; a blank query changes nothing.
    Costs one encoding a query and ``dim`` multiplications a candidate.
    """

    def __init__(self, retriever: Stage, /) -> None:
        if not isinstance(retriever, Stage):
            raise ConfigError(f"dot: {type(retriever).__name__}; expected a retriever")
        self.stages = (retriever,)

    def score_lists(
        self, queries: Queries, heads: Mapping[str, Ranking], documents: Texts | None
    ) -> dict[str, Scores]:
        """Return the scores of each query's candidates, float32."""
        found: dict[str, Scores] = {}
        for block in vector_blocks(self.stages[0], queries, heads, "dot"):
            found |= block.spread(pair_dots(block))
        return found


def pair_dots(block: VectorBlock) -> Scores:
    """Return the score of each pair of a block, float32 ``[pairs]``, summed in float64."""
    if not len(block.places):
        return np.zeros(0, np.float32)
    if isinstance(block.documents, np.ndarray) != isinstance(block.vectors, np.ndarray):
        raise ConfigError("dot: the encoder's query vectors and the index are of different kinds")
    if isinstance(block.documents, np.ndarray):
        return _dense(block)
    return _sparse(block)


def _dense(block: VectorBlock) -> Scores:
    from sluice.indexing.storage.exact_scores import METRICS, exact_scores, norms_of

    metric: Any = block.metric if block.metric in METRICS else "ip"
    queries = np.ascontiguousarray(block.vectors, dtype=np.float32)
    query_norms, norms = norms_of(queries), norms_of(block.documents)
    stops = np.searchsorted(block.owners, np.arange(len(queries) + 1))
    scores = np.empty(len(block.places), np.float32)
    for number, query in enumerate(queries):
        pairs = slice(stops[number], stops[number + 1])
        places = block.places[pairs]
        scores[pairs] = exact_scores(
            query, block.documents[places], metric, query_norms[number], norms[places]
        )
    return scores


def _sparse(block: VectorBlock) -> Scores:
    width = max(block.vectors.shape[1], block.documents.shape[1])  # a vocabulary may have grown
    queries, documents = _widened(block.vectors, width), _widened(block.documents, width)
    products = queries[block.owners].multiply(documents[block.places])
    sums: NDArray[np.float64] = products.sum(axis=1, dtype=np.float64)
    return np.asarray(sums).reshape(-1).astype(np.float32)


def _widened(matrix: Any, width: int) -> Any:
    if matrix.shape[1] == width:
        return matrix
    wider = matrix.copy()
    wider.resize((matrix.shape[0], width))
    return wider


dot = VectorDot  # ``bm25 >> dot(dense, depth=100)`` in a pipeline


def candidate_scores(stage: Stage, queries: Queries, heads: Mapping[str, Ranking]) -> Scores:
    """Return the score of each candidate, those of the first of ``heads`` first.

    A retriever whose index gives its vectors back scores all of them exactly, see ``VectorDot`` and
    ``StoredMaxSim``, and so does a stage that passes one on unfiltered. Any other is run, 1,000
    deep, and candidates that it did not find stand just below the lowest of the query's others; 0
    where there is none.
    """
    found = None
    retriever = retriever_of(stage)
    if retriever is not None and stage.base_where is None:
        scorer = StoredMaxSim if holds_tokens(retriever.index) else VectorDot
        try:
            found = scorer(stage).score_lists(queries, heads, None)
        except ConfigError:  # several vectors a document, or an index that keeps none
            found = None
    if found is None:
        run = stage.run({query: queries[query] for query in heads}, None, DEPTH)
        found = {q: _looked_up(run.get(q, Ranking([], [])), head) for q, head in heads.items()}
    return np.concatenate([np.zeros(0, np.float32), *(found[query] for query in heads)])


def _looked_up(ranking: Ranking, head: Ranking) -> Scores:
    known = dict(ranking)
    scores = np.array([known.get(doc, np.nan) for doc in head.doc_ids], np.float32)
    absent = np.isnan(scores)
    if absent.any():
        lowest = scores.min(initial=np.inf, where=~absent)
        below = np.nextafter(lowest, np.float32("-inf")) if np.isfinite(lowest) else 0.0
        scores[absent] = max(below, np.finfo(np.float32).min)
    return scores
