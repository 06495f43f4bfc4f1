"""Grades by trees over features of clicks, on simulated users whose truth is known."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from click_logs import EXAMINATION, write_log

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.training_data.clicks.log import simulated_log
from sluice.retrieval.training_data.clicks.models import Estimate, estimate
from sluice.retrieval.training_data.clicks.tree_grades import click_features, grades_by_trees

CHANCES = (0.05, 0.3, 0.8)  # to be clicked when looked at, by grade


class World:
    """Forty queries of four documents, always shown in the same order but for some noise."""

    def __init__(self, folder: Path) -> None:
        draw = random.Random(5)
        lists = {f"q{n:02d}": [f"d{n}" for n in range(4)] for n in range(40)}
        self.grades = {q: {d: draw.choice((0, 0, 1, 2)) for d in own} for q, own in lists.items()}
        rows = simulated_log(
            lists, lambda q, d: CHANCES[self.grades[q][d]], pages=100, model="pbm",
            examination=EXAMINATION, satisfaction=lambda q, d: 0.6, shuffle=1.0,
        )  # fmt: skip
        self.file = write_log(folder / "log.jsonl", rows)

    def estimate(self) -> Estimate:
        return estimate([self.file], "pbm", propensities=EXAMINATION)

    def judged(self, count: int) -> dict[str, dict[str, int]]:
        return {query: self.grades[query] for query in list(self.grades)[:count]}


@pytest.fixture
def world(tmp_path: Path) -> World:
    pytest.importorskip("lightgbm")
    return World(tmp_path)


def pairs_right(values: np.ndarray, world: World, estimated: Estimate, out: set[str]) -> float:
    """The share of pairs of documents of two grades, of queries not in ``out``, put in order."""
    by = {pair: values[n] for n, pair in enumerate(estimated.counts.pairs)}
    right = [
        float(by[q, a] > by[q, b]) + 0.5 * float(by[q, a] == by[q, b])
        for q, own in world.grades.items() if q not in out
        for a in own for b in own if own[a] > own[b] and (q, a) in by and (q, b) in by
    ]  # fmt: skip
    return float(np.mean(right))


def test_they_grade_queries_that_nobody_judged(world: World) -> None:
    estimated, judged = world.estimate(), world.judged(20)
    found = grades_by_trees(estimated, judged)
    assert set(found) == {0.0, 1.0, 2.0}
    assert (grades_by_trees(estimated, judged) == found).all()
    names = list(estimated.counts.pairs)
    unseen = [n for n, (query, _) in enumerate(names) if query not in judged]
    truth = np.array([world.grades[q][d] for q, d in names])
    most = np.bincount(truth[unseen]).max() / len(unseen)
    assert (found[unseen] == truth[unseen]).mean() > most
    assert pairs_right(found, world, estimated, set(judged)) > 0.85


def test_as_many_are_above_a_cut_as_were_judged(world: World) -> None:
    estimated, judged = world.estimate(), world.judged(20)
    found = grades_by_trees(estimated, judged)
    own = [n for n, (query, _) in enumerate(estimated.counts.pairs) if query in judged]
    truth = np.array([world.grades[q][d] for q, d in estimated.counts.pairs])[own]
    for grade in (1, 2):
        assert abs((found[own] >= grade).sum() - (truth >= grade).sum()) <= 8  # equal scores


def test_the_features_by_hand(tmp_path: Path) -> None:
    log = [
        {"query_id": "q", "doc_id": "a", "position": 1, "impressions": 10, "clicks": 4},
        {"query_id": "q", "doc_id": "a", "position": 3, "impressions": 10, "clicks": 1},
        {"query_id": "q", "doc_id": "b", "position": 2, "impressions": 20, "clicks": 2},
    ]
    estimated = estimate([write_log(tmp_path / "log.jsonl", log)], "counts")
    first, second = click_features(estimated)
    relevance = estimated.relevance(1.0)
    assert first == pytest.approx([np.log(21), np.log(6), 0.25, relevance[0], 2.0, 1.0, 1.0])
    assert second == pytest.approx(
        [np.log(21), np.log(3), 0.1, relevance[1], 2.0, 0.4, relevance[1] / relevance[0]]
    )


@pytest.mark.parametrize("judged", [{}, {"q00": {"d0": 1, "d1": 1}}, {"other": {"d0": 2}}])
def test_judgements_that_teach_nothing(world: World, judged: dict[str, dict[str, int]]) -> None:
    with pytest.raises(DataError, match="no query of the log has documents of two grades"):
        grades_by_trees(world.estimate(), judged)
