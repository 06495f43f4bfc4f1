"""Grades of clicked pairs by trees over features of clicks, learnt from a few judgements."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.training_data.clicks.models import Estimate, Floats
from sluice.training.rankers.linear_ranker import JudgedLists
from sluice.training.rankers.tree_ranker import LambdaTrees


def click_features(estimated: Estimate) -> Floats:
    """Return ``[pairs, 7]``: shown, clicked, rate, relevance, place, and both over the best."""
    pairs, cells = list(estimated.counts.pairs), estimated.counts.cells
    sums = np.zeros((len(pairs), 3))  # impressions, clicks, positions times impressions
    for (pair, position), (shown, clicked) in cells.items():
        sums[pair] += (shown, clicked, shown * position)
    rate, relevance = sums[:, 1] / np.maximum(sums[:, 0], 1), estimated.relevance(1.0)
    groups = np.unique([query for query, _ in pairs], return_inverse=True)[1]
    columns = [np.log1p(sums[:, 0]), np.log1p(sums[:, 1]), rate, relevance, sums[:, 2] / sums[:, 0]]
    for value in (rate, relevance):
        best = np.zeros(groups.max() + 1)
        np.maximum.at(best, groups, value)
        columns.append(value / np.maximum(best, 1e-12)[groups])
    return np.stack(columns, axis=1)


def grades_by_trees(
    estimated: Estimate, judged: Mapping[str, Mapping[str, int]], trees: LambdaTrees | None = None
) -> Floats:
    """Return a grade of each pair of a log: 0 to the highest judged (Zou et al. 2021).

    ``judged`` grades some of the pairs; as large a share of their scores is above a grade's cut as
    of their judgements. ``DataError`` where no query has two grades.
    """
    pairs, features = list(estimated.counts.pairs), click_features(estimated).astype(np.float32)
    rows = [n for n, (query, doc) in enumerate(pairs) if doc in judged.get(query, {})]
    rows.sort(key=lambda n: pairs[n][0])
    grades = np.array([judged[pairs[n][0]][pairs[n][1]] for n in rows], np.int64)
    starts: list[int] = list(np.unique([pairs[n][0] for n in rows], return_index=True)[1])
    lists = JudgedLists(
        features[rows], grades, np.array([*starts, len(rows)]), np.ones(len(starts))
    )
    if not rows or not len(lists.teaching()):
        raise DataError("clicks: no query of the log has documents of two grades; judge some more")
    scores = (trees or LambdaTrees(trees=60, leaves=8, rows_per_leaf=5)).fit(lists).score(features)
    return cut_as_judged(scores, scores[rows], grades)


def cut_as_judged(scores: Floats, known: Floats, grades: NDArray[np.int64]) -> Floats:
    """Return the grades of scores: of the ``known`` ones as many are above a cut as of grades."""
    ordered, counted = np.sort(known), np.sort(grades)
    cuts = [ordered[np.searchsorted(counted, g)] for g in range(1, int(grades.max()) + 1)]
    return np.searchsorted(cuts, scores, side="right").astype(np.float64)
