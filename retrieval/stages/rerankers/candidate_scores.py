"""What a retriever says of given candidates: its score of each, whether it found it or not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.pipelines.rerank import Scores
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.retriever import retriever_of
from sluice.retrieval.runs.queries import DEPTH, Queries
from sluice.retrieval.runs.run import Ranking
from sluice.retrieval.stages.rerankers.dot import VectorDot


def candidate_scores(stage: Stage, queries: Queries, heads: Mapping[str, Ranking]) -> Scores:
    """Return the score of each candidate, those of the first of ``heads`` first.

    A retriever whose index gives its vectors back scores all of them exactly, see ``VectorDot``,
    and so does a stage that passes one on unfiltered. Any other is run, 1,000 deep, and candidates
    that it did not find stand just below the lowest of the query's others; 0 where there is none.
    """
    found = None
    if retriever_of(stage) is not None and stage.base_where is None:
        try:
            found = VectorDot(stage).score_lists(queries, heads, None)
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
