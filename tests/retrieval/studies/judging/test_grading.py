"""Grading judges: thresholds, cached grades, files, and which specification opens what."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.stages.rerankers.score_cache import ScoreCache
from sluice.retrieval.studies.judging.generative_judge import GenerativeJudge
from sluice.retrieval.studies.judging.grading import (
    CachedGrades,
    CachedScores,
    LabelFile,
    ThresholdJudge,
    fit_thresholds,
    open_grading_judge,
    rounded,
)
from sluice.training.negatives.false_negatives import JudgedPair


def pair(document: str, query: str = "q") -> JudgedPair:
    return JudgedPair(query, f"text of {query}", document, document)


class Lengths:
    """A teacher whose score is the length of the document; it stops where it is told to."""

    name, needs_texts, fingerprint = "lengths", True, "lengths-1"
    highest, models = 9, ("lengths-1",)

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at = stop_at
        self.asked: list[str] = []

    def scores(self, pairs: Sequence[JudgedPair]) -> list[float]:
        if self.stop_at is not None and len(self.asked) + len(pairs) > self.stop_at:
            raise KeyboardInterrupt
        self.asked += [each.document for each in pairs]
        return [math.nan if "?" in each.document else len(each.document) / 3 for each in pairs]


def test_thresholds_cut_scores_into_grades() -> None:
    judge = ThresholdJudge(Lengths(), [1.0, 1.0, 2.0])
    found = judge.scores([pair("a"), pair("abc"), pair("abcdef"), pair("?")])
    assert found.tolist()[:3] == [0.0, 2.0, 3.0]
    assert math.isnan(found[3])
    assert judge.highest == 3
    assert judge.fingerprint != ThresholdJudge(Lengths(), [1.0, 1.5, 2.0]).fingerprint
    assert "lengths-1" in judge.models
    assert rounded(np.array([0.49, 0.5, 1.5, 2.4])).tolist() == [0, 1, 2, 2]


@pytest.mark.parametrize("bad", [[], [2.0, 1.0], [math.nan], [0.0, math.inf]])
def test_thresholds_that_are_none(bad: list[float]) -> None:
    with pytest.raises(ConfigError, match="one rising number for each grade"):
        ThresholdJudge(Lengths(), bad)


def test_a_judge_without_thresholds_says_what_to_do() -> None:
    judge = ThresholdJudge(Lengths())
    with pytest.raises(ConfigError, match="has no thresholds; give them"):
        judge.scores([pair("a")])
    texts = ["a", "aa", "aaaa", "aaaaa", "aaaaaaaa", "?"]
    fitted = judge.fitted([pair(text) for text in texts], [0, 0, 1, 1, 2, 2])
    assert fitted.thresholds == pytest.approx([1.0, 6.5 / 3])
    assert fitted.scores([pair("aaa"), pair("aaaaaaa")]).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("seed", range(5))
def test_fitted_thresholds_give_each_grade_as_often_as_people(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(5, size=60)
    labels[labels == 2] = 3  # a grade nobody gives
    labels[0] = -1  # junk is not relevant
    scores = labels + rng.normal(0, 1.2, size=60)
    found = fit_thresholds(scores, labels)
    assert found == sorted(found)
    given = np.searchsorted(found, scores, side="right")
    wanted = np.bincount(np.maximum(labels, 0), minlength=5)
    assert np.bincount(given, minlength=5).tolist() == wanted.tolist()


def test_ties_are_cut_at_their_nearest_end() -> None:
    scores, labels = np.array([1.0, 2, 2, 2, 2, 3]), np.array([0, 0, 1, 1, 1, 1])
    assert fit_thresholds(scores, labels) == [1.5]
    assert fit_thresholds(scores, np.array([0, 0, 0, 0, 1, 1])) == [2.5]


def test_labels_that_tell_no_threshold() -> None:
    with pytest.raises(DataError, match=r"2 of grade 1, 1 of grade 2; expected some of grade 0"):
        fit_thresholds(np.array([1.0, 2.0, 3.0]), np.array([1, 1, 2]))
    with pytest.raises(DataError, match="none"):
        fit_thresholds(np.array([]), np.array([], int))
    with pytest.raises(DataError, match="all 2 scores are 1"):
        fit_thresholds(np.array([1.0, 1.0]), np.array([0, 1]))


def test_no_pair_is_scored_twice_and_a_kill_costs_a_block(tmp_path: Path) -> None:
    texts = ["a", "bb", "ccc", "bb", "dddd", "?", "eeeee"]
    pairs = [pair(text) for text in texts]
    killed = CachedScores(Lengths(stop_at=4), ScoreCache(tmp_path / "c.sqlite"), block=2)
    with pytest.raises(KeyboardInterrupt):
        killed.scores(pairs)
    killed.cache.close()
    teacher = Lengths()
    again = CachedScores(teacher, ScoreCache(tmp_path / "c.sqlite"), block=2)
    found = again.scores(pairs)
    assert teacher.asked == ["?", "eeeee"]  # the four before were kept
    np.testing.assert_array_equal(
        found, np.array([math.nan if "?" in t else np.float32(len(t) / 3) for t in texts])
    )
    assert (again.hits, again.misses) == (5, 2)
    np.testing.assert_array_equal(again.scores(pairs), found)
    assert teacher.asked == ["?", "eeeee", "?"]  # no answer is no label: asked again
    teacher.fingerprint = "lengths-2"
    again.scores(pairs[:1])
    assert teacher.asked[3:] == ["a"]  # another judge's labels are not taken
    again.cache.close()


def test_cached_grades_are_the_judges(tmp_path: Path) -> None:
    judge = Lengths()
    kept = CachedGrades(judge, ScoreCache(tmp_path / "c.sqlite"))
    assert (kept.highest, kept.models, kept.name) == (9, ("lengths-1",), "lengths")
    assert kept.fingerprint == judge.fingerprint
    kept.cache.close()


def test_a_file_of_labels(tmp_path: Path) -> None:
    path = tmp_path / "labels.tsv"
    path.write_text("query-id\tcorpus-id\tscore\nq\ta\t2\nq\tb\t-1\n")
    judge = open_grading_judge(path)
    assert isinstance(judge, LabelFile)
    assert (judge.highest, judge.needs_texts) == (2, False)
    found = judge.scores([pair("a"), pair("b"), pair("c")])
    assert found.tolist()[:2] == [2.0, 0.0]
    assert math.isnan(found[2])
    before = judge.fingerprint
    path.write_text("q 0 a 1\n")
    assert open_grading_judge(str(path)).fingerprint != before


def test_specifications(tmp_path: Path, pair_bert: Path) -> None:
    cache = ScoreCache(tmp_path / "c.sqlite")
    judge = open_grading_judge(str(pair_bert), cache=cache)
    assert isinstance(judge, ThresholdJudge)
    assert isinstance(judge.teacher, CachedScores)
    assert str(pair_bert.resolve()) in judge.models
    assert judge.thresholds is None
    given = open_grading_judge(
        {"type": "cross_encoder", "model": str(pair_bert), "thresholds": [0.0]}
    )
    assert given.highest == 1
    assert set(given.scores([pair("gold"), pair("water")])) <= {0.0, 1.0}
    spec = tmp_path / "judge.yaml"
    spec.write_text("type: http\nurl: http://127.0.0.1:9/v1\nmodel: m\nmethod: criteria\n")
    opened = open_grading_judge(spec, cache=cache)
    assert isinstance(opened, CachedGrades)
    assert isinstance(opened.teacher, GenerativeJudge)
    assert (opened.teacher.method, opened.name, opened.highest) == ("criteria", "m", 3)
    same = open_grading_judge(
        "{type: http, url: 'http://127.0.0.1:9/v1', model: m, method: criteria}"
    )
    assert same.fingerprint == opened.fingerprint
    cache.close()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no-such.tsv", "does not exist; expected a qrels file"),
        ("{type: oracle}", "unknown type 'oracle'"),
        ("{type: http, url: x, model: m, metod: direct}", "did you mean 'method'"),
        ("{type: http, url: 'http://x', model: m, method: vote}", "method"),
        ("{type: [}", "is not YAML"),
    ],
)
def test_specifications_that_are_none(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_grading_judge(spec)
