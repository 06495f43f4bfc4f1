"""LambdaMART: what it learns, that it repeats itself, and what it refuses."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sluice.encoders.foundation.errors import ConfigError, MissingPackageError, ModelError
from sluice.training.rankers.linear_ranker import JudgedLists, ndcg_of
from sluice.training.rankers.tree_ranker import LambdaTrees, TreeRanker, has_lightgbm

needs_lightgbm = pytest.mark.skipif(not has_lightgbm(), reason="LightGBM is not installed")


def lists(seed: int, count: int = 60, size: int = 25) -> JudgedLists:
    """Relevant is what lies in a corner of two features: no weighted sum says so."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(count * size, 5)).astype(np.float32)
    grades = ((np.abs(values[:, 1]) < 0.4) & (values[:, 3] > 0)).astype(np.int64)
    starts = np.arange(0, count * size + 1, size)
    tops = np.cumsum(1 / np.log2(np.arange(2, 12)))
    relevant = np.minimum(np.add.reduceat(grades, starts[:-1]), 10)
    return JudgedLists(values, grades, starts, np.where(relevant > 0, tops[relevant - 1], 0.0))


@needs_lightgbm
def test_trees_learn_what_no_sum_can_and_stop_early() -> None:
    train, dev, test = lists(0), lists(1), lists(2)
    ranker = LambdaTrees(trees=60, leaves=15, learning_rate=0.2, patience=5).fit(train, dev)
    found = ndcg_of(ranker.score(test.features), test).mean()
    assert found > ndcg_of(np.zeros(len(test.grades)), test).mean() + 0.3
    assert set(np.argsort(-ranker.importances())[:2].tolist()) == {1, 3}
    assert ranker.text.count("Tree=") < 60
    assert ranker.width == 5


@needs_lightgbm
def test_the_same_lists_give_the_same_trees_whatever_the_threads() -> None:
    def trees(threads: int) -> str:
        text = LambdaTrees(trees=3, threads=threads, feature_share=0.6).fit(lists(0)).text
        return text.partition("parameters:")[0]

    assert trees(1) == trees(2)


@needs_lightgbm
def test_text_keeps_the_scores(tmp_path: Path) -> None:
    ranker = LambdaTrees(trees=5).fit(lists(0))
    ranker.write(tmp_path)
    again = TreeRanker.read(tmp_path)
    values = lists(3).features
    np.testing.assert_array_equal(again.score(values), ranker.score(values))
    assert again.score(values[:0]).shape == (0,)


@needs_lightgbm
def test_a_text_that_is_no_model_is_an_error() -> None:
    with pytest.raises(ModelError, match="cannot read it"):
        TreeRanker("tree\nnonsense").score(np.zeros((1, 1), np.float32))


@needs_lightgbm
def test_few_candidates_and_one_grade_for_all_queries() -> None:
    few = JudgedLists(
        np.ones((3, 2), np.float32), np.array([1, 0, 0]), np.array([0, 3]), np.ones(1)
    )
    scores = LambdaTrees(trees=3).fit(few, few).score(few.features)
    assert len(set(scores.tolist())) == 1


def test_settings_are_checked() -> None:
    for wrong in ({"leaves": 1}, {"trees": 0}, {"learning_rate": 0}, {"feature_share": 0}):
        with pytest.raises(ConfigError, match="lightgbm"):
            LambdaTrees(**wrong)  # type: ignore[arg-type]


def test_without_lightgbm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lightgbm", None)
    with pytest.raises(MissingPackageError, match=r"sluice-ir\[lightgbm\]"):
        LambdaTrees().fit(lists(0))


@needs_lightgbm
def test_dev_queries_without_any_candidate_stop_nothing() -> None:
    train = lists(1, 2)
    nobody = replace(
        train, features=train.features[:0], grades=train.grades[:0], starts=np.zeros(3, np.int64)
    )
    settings = LambdaTrees(trees=3, rows_per_leaf=2)
    assert settings.fit(train, nobody).text == settings.fit(train).text
