"""Values of a reranker's settings on judged queries: each pair is scored once, the rest is sums."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
from numpy.typing import NDArray

from sluice.retrieval.evaluation.judgements import Judgements
from sluice.retrieval.evaluation.measures import Measure, compute, settled
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.runs.queries import DEPTH
from sluice.retrieval.runs.run import Ranking, Run

Array = NDArray[np.float64]
Setting = tuple[int, float]  # depth, share of the earlier score

DEPTHS = (5, 10, 15, 20, 30, 50, 75, 100, 150, 200)
SHARES = tuple(round(0.1 * step, 1) for step in range(10))


def settings_up_to(depth: int, *, steps: bool = True) -> list[Setting]:
    """Return depth 0 first, then the depths up to ``depth`` with every share.

    Without ``steps`` only the ends are tried, for scorers of whole lists.
    """
    depths = [each for each in DEPTHS if steps and each < depth] + [depth]
    return [(0, 0.0), *product(depths, SHARES)]


class RerankSearch:
    """Reranks the lists of ``first`` by the scores that ``scored`` has of their heads.

    Both are runs of the judged queries; every query's head in ``scored`` holds the same documents
    as the first ones of its list.
    """

    def __init__(self, first: Run, scored: Run, qrels: Qrels, measure: Measure) -> None:
        grades = [grade for judged in qrels.values() for grade in judged.values()]
        self.measure = settled(measure, np.array(grades, np.int64))
        self.queries = len(qrels)
        empty = Ranking([], [])
        heads = {query: _by_document(scored.get(query, empty)) for query in qrels}
        width = max(self.measure.cutoff or DEPTH, *map(len, heads.values()), 1)
        lists = [first.get(query, empty)[:width] for query in qrels]
        self._lengths = np.array([len(each) for each in lists], np.int64)
        self._retrieved = np.array([len(first.get(query, empty)) for query in qrels], np.int64)
        shape = (len(lists), int(self._lengths.max(initial=0)))
        self._earlier, self._scores = np.zeros(shape), np.zeros(shape)
        self._scored = np.zeros(shape, np.bool_)
        self._judged, self._grades = np.zeros(shape, np.bool_), np.zeros(shape, np.int64)
        for row, (query, ranking) in enumerate(zip(qrels, lists, strict=True)):
            self._fill(row, ranking, heads[query], qrels[query])
        counts = [len(judged) for judged in qrels.values()]
        self._judged_query = np.repeat(np.arange(len(counts)), counts)
        self._judged_grade = np.array(grades, np.int64)

    def _fill(
        self, row: int, ranking: Ranking, head: Mapping[str, float], judged: Mapping[str, int]
    ) -> None:
        size = len(ranking)
        self._earlier[row, :size] = ranking.scores
        for place, name in enumerate(ranking.doc_ids):
            if name in head:
                self._scores[row, place], self._scored[row, place] = head[name], True
            if name in judged:
                self._judged[row, place], self._grades[row, place] = True, judged[name]

    def values(self, depth: int, share: float) -> Array:
        """Return the measure by query when the first ``depth`` are reranked."""
        places = np.arange(self._earlier.shape[1])
        order = np.tile(places, (self.queries, 1))
        head = self._scored[:, :depth]
        if depth and head.size:
            mixed = self._scores[:, :depth]
            if share:
                earlier = _z_scores(self._earlier[:, :depth], head)
                mixed = (1 - share) * _z_scores(mixed, head) + share * earlier
            keys = np.where(head, -mixed.astype(np.float32), np.inf)
            order[:, : head.shape[1]] = np.argsort(keys, axis=1, kind="stable")
        judged = np.take_along_axis(self._judged, order, axis=1)
        query, rank = np.nonzero(judged)
        return compute(
            self.measure,
            Judgements(
                hit_query=query,
                hit_rank=rank,
                hit_grade=self._grades[query, order[query, rank]],
                judged_query=self._judged_query,
                judged_grade=self._judged_grade,
                retrieved=self._retrieved,
            ),
        )


def _by_document(ranking: Ranking) -> dict[str, float]:
    return dict(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True))


def _z_scores(scores: Array, there: NDArray[np.bool_]) -> Array:
    """Return each row's scores less their mean, over their deviation; 0 where all are the same."""
    counts = np.maximum(there.sum(axis=1, keepdims=True), 1)
    centred = np.where(there, scores, 0.0)
    centred = np.where(there, scores - centred.sum(axis=1, keepdims=True) / counts, 0.0)
    deviation = np.sqrt((centred**2).sum(axis=1, keepdims=True) / counts)
    lowest = np.where(there, scores, np.inf).min(axis=1, keepdims=True)
    highest = np.where(there, scores, -np.inf).max(axis=1, keepdims=True)
    varied = (highest > lowest) & (deviation > 0)
    scaled: Array = np.where(varied, centred / np.where(varied, deviation, 1.0), 0.0)
    return scaled
