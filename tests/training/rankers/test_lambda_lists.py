"""Lambda gradients: the weights against a brute-force swap, the gradients against differences."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.training.rankers.linear_ranker import (
    JudgedLists,
    LambdaLinear,
    LinearRanker,
    ideal_dcg,
    joined,
    lambdas,
    ndcg_of,
    ranks_of,
    weighed_pairs,
)


def lists_of(sizes: list[int], features: int = 3, seed: int = 0, grades: int = 3) -> JudgedLists:
    rng = np.random.default_rng(seed)
    count = sum(sizes)
    drawn = rng.integers(0, grades, count)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    ideals = [ideal_dcg(drawn[a:b].tolist()) for a, b in itertools.pairwise(starts)]
    values = rng.normal(size=(count, features)).astype(np.float32)
    return JudgedLists(values, drawn, starts, np.array(ideals))


def ndcg(grades: np.ndarray, order: list[int]) -> float:
    gains = 2.0**grades - 1
    found = sum(gains[doc] / np.log2(2 + place) for place, doc in enumerate(order))
    best = sum(gain / np.log2(2 + place) for place, gain in enumerate(sorted(gains)[::-1]))
    return float(found / best)


def swap_gap(grades: np.ndarray, order: list[int], i: int, j: int) -> float:
    """How far nDCG moves when two documents of an order exchange their ranks."""
    swapped = [j if doc == i else i if doc == j else doc for doc in order]
    return abs(ndcg(grades, order) - ndcg(grades, swapped))


@settings(derandomize=True, deadline=None, max_examples=40)
@given(grades=st.lists(st.integers(0, 4), min_size=1, max_size=9), seed=st.integers(0, 99))
def test_a_pair_weighs_what_a_swap_does(grades: list[int], seed: int) -> None:
    graded = np.array(grades)
    scores = np.random.default_rng(seed).normal(size=len(graded))
    order = np.argsort(-scores).tolist()
    lists = JudgedLists(
        np.zeros((len(graded), 1), np.float32),
        graded,
        np.array([0, len(graded)]),
        np.array([ideal_dcg(grades)]),
    )
    pairs = weighed_pairs(scores, lists, None)
    expected = {
        (i, j): swap_gap(graded, order, i, j)
        for i, j in itertools.product(range(len(graded)), repeat=2)
        if graded[i] > graded[j]
    }
    weights = zip(pairs.better.tolist(), pairs.worse.tolist(), pairs.weights, strict=True)
    assert {(i, j): weight for i, j, weight in weights} == pytest.approx(expected)


def test_lambda_gradients_are_the_straight_line_sums_and_the_loss_s_differences() -> None:
    lists = lists_of([7, 1, 5])
    scores = np.random.default_rng(1).normal(size=13)
    sigma = 1.7
    pairs = weighed_pairs(scores, lists, None)
    ranks = ranks_of(scores, lists.starts)
    gradient, hessian, loss = np.zeros(13), np.zeros(13), 0.0
    for start, stop in itertools.pairwise(lists.starts):
        grades, order = lists.grades[start:stop], np.argsort(ranks[start:stop]).tolist()
        for i, j in itertools.product(range(start, stop), repeat=2):
            if lists.grades[i] <= lists.grades[j]:
                continue
            weight = swap_gap(grades, order, i - start, j - start)
            rho = 1 / (1 + np.exp(sigma * (scores[i] - scores[j])))
            gradient[i] -= sigma * rho * weight
            gradient[j] += sigma * rho * weight
            hessian[[i, j]] += sigma**2 * rho * (1 - rho) * weight
            loss += weight * np.log1p(np.exp(-sigma * (scores[i] - scores[j])))
    found = lambdas(scores, pairs, sigma)
    assert found.loss == pytest.approx(loss, abs=1e-10)
    np.testing.assert_allclose(found.gradient, gradient, atol=1e-12)
    np.testing.assert_allclose(found.hessian, hessian, atol=1e-12)
    step = 1e-6 * np.eye(13)
    slopes = [
        (lambdas(scores + each, pairs, sigma).loss - lambdas(scores - each, pairs, sigma).loss)
        / 2e-6
        for each in step
    ]
    np.testing.assert_allclose(found.gradient, slopes, atol=1e-8)


def test_truncation_leaves_out_pairs_that_are_both_beyond_it() -> None:
    lists = lists_of([12, 9], seed=3)
    scores = np.random.default_rng(2).normal(size=21)
    ranks = ranks_of(scores, lists.starts)
    whole, cut = weighed_pairs(scores, lists, None), weighed_pairs(scores, lists, 4)
    near = np.minimum(ranks[whole.better], ranks[whole.worse]) <= 4
    assert cut.better.tolist() == whole.better[near].tolist()
    assert cut.weights.tolist() == whole.weights[near].tolist()


def test_large_scores_neither_overflow_nor_stop_the_gradient() -> None:
    lists = JudgedLists(
        np.zeros((2, 1), np.float32), np.array([0, 1]), np.array([0, 2]), np.ones(1)
    )
    found = lambdas(np.array([1e4, -1e4]), weighed_pairs(np.zeros(2), lists))
    assert np.isfinite(found.loss)
    assert found.gradient[1] < 0 < found.gradient[0]


def test_ndcg_is_trec_evals() -> None:
    pytrec_eval = pytest.importorskip("pytrec_eval")
    lists = lists_of([25, 3, 12], seed=5)
    scores = np.random.default_rng(4).permutation(40).astype(float)
    qrels: dict[str, dict[str, int]] = {}
    run: dict[str, dict[str, float]] = {}
    for row, owner in enumerate(lists.owners.tolist()):
        qrels.setdefault(str(owner), {})[str(row)] = int(lists.grades[row])
        run.setdefault(str(owner), {})[str(row)] = float(scores[row])
    found = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut_10"}).evaluate(run)
    expected = [found[str(owner)]["ndcg_cut_10"] for owner in range(3)]
    np.testing.assert_allclose(ndcg_of(scores, lists), expected, atol=1e-12)


def test_lists_that_teach_nothing_are_left_out() -> None:
    lists = lists_of([4, 3, 0, 5])
    lists.grades[:4] = 1
    lists.grades[4:7] = 0
    taught = lists.teaching()
    assert len(taught) == 1
    np.testing.assert_array_equal(taught.features, lists.features[7:])
    assert ndcg_of(np.zeros(12), lists)[1] == 0
    both = joined([taught, taught])
    assert both.starts.tolist() == [0, 5, 10]


def test_ranks_keep_the_order_of_ties() -> None:
    assert ranks_of(np.array([1.0, 1.0, 2.0, 5.0]), np.array([0, 3, 4])).tolist() == [2, 3, 1, 1]


def taught_lists(seed: int, count: int = 40, size: int = 20) -> JudgedLists:
    """Lists whose grades follow the first feature, with noise in the others."""
    lists = lists_of([size] * count, features=4, seed=seed)
    noise = np.random.default_rng(seed + 1).normal(size=count * size)
    hidden = lists.features[:, 0] * 2 + 0.3 * noise
    grades = (hidden > 2).astype(np.int64) + (hidden > 3.5)
    ideals = [ideal_dcg(grades[a:b].tolist()) for a, b in itertools.pairwise(lists.starts)]
    return replace(lists, grades=grades, ideals=np.array(ideals))


def test_a_linear_ranker_finds_the_feature_that_decides(tmp_path: object) -> None:
    train, dev = taught_lists(1).teaching(), taught_lists(7)
    ranker = LambdaLinear().fit(train, dev)
    assert int(ranker.importances().argmax()) == 0
    given, found = ndcg_of(np.zeros(800), dev), ndcg_of(ranker.score(dev.features), dev)
    assert found.mean() > given.mean() + 0.3


def test_one_feature_keeps_its_order_and_a_constant_one_has_no_weight() -> None:
    lists = taught_lists(2).teaching()
    only = lists.taking(np.array([0]))
    scores = LambdaLinear().fit(only).score(only.features)
    assert (
        ranks_of(scores, only.starts).tolist()
        == ranks_of(only.features[:, 0].astype(float), only.starts).tolist()
    )
    constant = replace(lists, features=np.full_like(lists.features, 3.3))
    assert not LambdaLinear().fit(constant).weights.any()


def test_dev_without_queries_is_as_none() -> None:
    train = lists_of([10, 10])
    nobody = replace(
        train, features=train.features[:0], grades=train.grades[:0], starts=train.starts[:1],
        ideals=train.ideals[:0],
    )  # fmt: skip
    assert np.array_equal(
        LambdaLinear(rounds=2).fit(train, nobody).weights, LambdaLinear(rounds=2).fit(train).weights
    )


def test_its_objective_falls_with_every_round_s_weights_held() -> None:
    from sluice.training.rankers.linear_ranker import _Objective

    lists = taught_lists(3).teaching()
    values = lists.features.astype(float)
    pairs = weighed_pairs(np.zeros(len(values)), lists)
    objective = _Objective(values, pairs, 1.0, 0.01, len(lists))
    at = np.array([0.3, -0.2, 0.1, 0.0])
    step = 1e-6
    slopes = [(objective(at + e)[0] - objective(at - e)[0]) / (2 * step) for e in step * np.eye(4)]
    np.testing.assert_allclose(objective(at)[1], slopes, atol=1e-7)


@pytest.mark.parametrize("settings_", [{"rounds": 0}, {"l2": -1}, {"sigma": 0}, {"truncation": 0}])
def test_settings_are_checked(settings_: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="linear"):
        LambdaLinear(**settings_)  # type: ignore[arg-type]


def test_a_damaged_weights_file_is_an_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("linear")
    LinearRanker(np.ones(2), np.zeros(2), np.ones(2)).write(folder)
    assert LinearRanker.read(folder).score(np.ones((1, 2), np.float32)).tolist() == [2.0]
    for text in ('{"weights": [1]}', '{"weights": [NaN], "mean": [0], "scale": [1]}'):
        (folder / "linear.json").write_text(text)
        with pytest.raises(ModelError, match=r"linear\.json"):
            LinearRanker.read(folder)
