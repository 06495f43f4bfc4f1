"""Reranking by the full vectors that another retriever's index holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.pipelines.rerank import Scores
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking
from sluice.retrieval.stages.rerankers.stored_vectors import VectorBlock, vector_blocks


class VectorDot:
    """Scores candidates as ``retriever`` would: query vector against stored document vector.

    The similarity is the index's: inner product, cosine or negative squared distance. Dense scores
    are exactly those of ``FlatIndex``, so its own hits keep theirs. Candidates that the retriever
    does not know stand below the others in the order they had; a blank query changes nothing.
    Costs one encoding a query and ``dim`` multiplications a candidate.
    """

    def __init__(self, retriever: Stage) -> None:
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


def dot(retriever: Stage, /) -> VectorDot:
    """Make the scorer of a pipeline such as ``bm25 >> dot(dense, depth=100)``."""  # noqa: D402  # an example, no signature
    return VectorDot(retriever)
