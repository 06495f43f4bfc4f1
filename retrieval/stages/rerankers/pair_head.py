"""Reranking by a small network over the vectors that a retriever's index holds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.pipelines.scorer import Scores
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking
from sluice.retrieval.stages.rerankers.stored_vectors import vector_blocks

if TYPE_CHECKING:
    from sluice.encoders.dense.pair_head import PairHead


class PairHeadScorer:
    """Scores candidates by the pair head of ``model`` over the stored vectors of ``retriever``.

    The head was trained with the encoder whose vectors the retriever holds (``loss: {type: dse}``)
    and lies beside it, in ``pair_head/``. No transformer runs but for the query: a pair costs
    ``4 dim hidden`` multiplications. Candidates that the retriever does not know stand below the
    others, in the order they had. (Barkan et al., 2020, Distilled Sentence Embedding.)
    """

    def __init__(self, retriever: Stage, /, model: str) -> None:
        if not isinstance(retriever, Stage):
            raise ConfigError(f"pair_head: {type(retriever).__name__}; expected a retriever")
        if not model:
            raise ConfigError("pair_head: model is empty; expected the folder of a model")
        self.stages = (retriever,)
        self.model = model

    @cached_property
    def head(self) -> PairHead:
        """The head, loaded when it is first needed."""
        from sluice.encoders.dense.pair_head import PairHead
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
