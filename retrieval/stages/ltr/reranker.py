"""Learning to rank as a stage: ``ltr(bm25, dense, model='runs/ltr', depth=200)``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from sluice.encoders.foundation.disk.locks import OwnLock
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking
from sluice.retrieval.stages.ltr.features import CandidateFeatures
from sluice.retrieval.stages.ltr.ranker import TERMS, LearnedRanker


class LearnedReranker:
    """Scores each query's candidates by a trained ranker: a ``ListScorer``.

    ``stages`` are the retrievers it was trained with, in any order. The model's folder is opened,
    and checked against them, when the first candidates are scored. Where the corpus is the one of
    the training its terms are read from the folder; any other is counted once, in memory.
    """

    def __init__(self, stages: tuple[Stage, ...], model: str | Path) -> None:
        self.stages = stages
        self.path = Path(model)
        self._features = CandidateFeatures(stages)  # names that clash are refused at once
        self._ranker: LearnedRanker | None = None
        self._lock = OwnLock()

    def score_lists(
        self, queries: Queries, heads: Mapping[str, Ranking], documents: Texts | None
    ) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
        """Return each candidate's score, query by query."""
        ranker, features = self._opened(documents)
        matrix = features.matrix(queries, heads, documents)
        scores = ranker.score(matrix[:, ranker.columns(features.names)])
        ends = np.cumsum([len(head) for head in heads.values()])
        return dict(zip(heads, np.split(scores, ends[:-1]), strict=True))

    def _opened(self, documents: Texts | None) -> tuple[LearnedRanker, CandidateFeatures]:
        with self._lock:  # threads that search meanwhile count the corpus once
            if self._ranker is None:
                ranker = LearnedRanker.open(self.path)
                ranker.check_parts(self.stages)
                self._features = CandidateFeatures(
                    self.stages, language=ranker.language, saved=self.path / TERMS
                )
                ranker.columns(self._features.names)
                self._ranker = ranker
            self._features.terms(documents)
            return self._ranker, self._features


def ltr(
    *stages: Stage, model: Annotated[str, "The folder that `sluice fit ranker` wrote."]
) -> LearnedReranker:
    """``ltr(bm25, dense, model='runs/ltr', depth=200)`` of a pipeline: see ``LearnedReranker``."""
    for stage in stages:
        if not isinstance(stage, Stage):
            raise ConfigError(
                f"ltr takes retrievers, not a {type(stage).__name__}: their scores are features"
            )
    if not model:
        raise ConfigError("ltr: no model; expected the folder that sluice fit ranker wrote")
    return LearnedReranker(stages, model)
