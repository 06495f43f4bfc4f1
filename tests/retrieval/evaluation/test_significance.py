import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings, strategies as st

from sluice.retrieval.evaluation.significance import (
    bonferroni,
    effect,
    fisher_randomisation,
    holm,
    paired_bootstrap,
    paired_t_test,
)

VALUES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 0.5, 0.63, 1.0]), st.floats(0, 1)),
    min_size=2,
    max_size=9,
)


@settings(derandomize=True, max_examples=80, deadline=None)
@given(VALUES)
def test_t_test_equals_scipys(pairs: list[tuple[float, float]]) -> None:
    first, second = np.array(pairs).T
    difference = first - second
    if difference.std() < 1e-9:
        return
    expected = scipy.stats.ttest_rel(first, second).pvalue
    assert paired_t_test(first, second) == pytest.approx(expected, abs=1e-9)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(VALUES)
def test_fisher_counts_every_sign_pattern(pairs: list[tuple[float, float]]) -> None:
    first, second = np.round(np.array(pairs).T, 3)
    difference = first - second
    observed = abs(difference.sum()) - 1e-9
    patterns = list(itertools.product([1, -1], repeat=len(difference)))
    extreme = sum(abs(np.dot(signs, difference)) >= observed for signs in patterns)
    assert fisher_randomisation(first, second) == pytest.approx(extreme / len(patterns))


def test_sampled_fisher_is_near_the_exact_one_and_never_zero() -> None:
    rng = np.random.default_rng(4)
    first = rng.random(13)
    second = first - rng.normal(0.1, 0.2, 13)
    exact = fisher_randomisation(first, second, permutations=2**13)
    sampled = fisher_randomisation(first, second, permutations=2**13 - 1, seed=5)
    assert sampled == pytest.approx(exact, abs=0.02)
    assert sampled != exact
    assert sampled == fisher_randomisation(first, second, permutations=2**13 - 1, seed=5)
    assert fisher_randomisation(np.ones(300), np.zeros(300), permutations=99) == 1 / 100


def test_degenerate_samples() -> None:
    same = np.array([0.2, 0.4])
    for test in (paired_t_test, fisher_randomisation):
        assert test(same, same) == 1.0
        assert test(np.array([0.9]), np.array([0.1])) == 1.0
        assert test(np.array([]), np.array([])) == 1.0
    assert paired_t_test(np.ones(3), np.zeros(3)) == 0.0


def test_holm() -> None:
    # .01 x 4, .02 x 3, .03 x 2, .04 x 1 raised to the one before
    assert holm([0.01, 0.04, 0.03, 0.02]) == pytest.approx([0.04, 0.06, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_bonferroni() -> None:
    """statsmodels.stats.multitest.multipletests(..., method="bonferroni") gives these."""
    assert bonferroni([0.01, 0.04, 0.3, 0.02]) == pytest.approx([0.04, 0.16, 1.0, 0.08])
    assert bonferroni([]) == []


def test_fisher_sums_by_bytes_as_it_would_one_by_one() -> None:
    """The number of queries is no multiple of eight, and all patterns are counted."""
    rng = np.random.default_rng(3)
    difference = rng.normal(0.2, 1, 11)
    signs = np.array([[1 - 2 * ((i >> j) & 1) for j in range(11)] for i in range(2**11)])
    far = np.abs(signs @ difference) >= abs(difference.sum()) - 1e-12
    found = fisher_randomisation(difference, np.zeros(11), permutations=2**11)
    assert found == pytest.approx(far.mean())


def test_bootstrap_is_near_the_t_test_where_its_assumptions_hold() -> None:
    rng = np.random.default_rng(5)
    for shift in (0.0, 0.1, 0.2, 0.35):
        first, second = rng.normal(shift, 1, 200), rng.normal(0, 1, 200)
        found = paired_bootstrap(first, second, resamples=20_000, seed=1)
        assert found.p_value == pytest.approx(paired_t_test(first, second), abs=0.02)
        usual = effect(first, second)
        assert (found.low, found.high) == pytest.approx((usual.low, usual.high), abs=0.02)
        assert found == paired_bootstrap(first, second, resamples=20_000, seed=1)


def test_bootstrap_equals_its_definition() -> None:
    rng = np.random.default_rng(8)
    difference = rng.exponential(0.3, 12) - 0.2
    found = paired_bootstrap(difference, np.zeros(12), resamples=500, seed=4)
    drawn = np.random.default_rng(4).integers(0, 12, (500, 12), dtype=np.int32)
    centred = difference - difference.mean()

    def t(sample: np.ndarray) -> float:
        spread = sample.std(ddof=1)
        return abs(sample.mean()) / spread if spread else math.inf * abs(sample.mean())

    count = sum(t(centred[row]) >= t(difference) for row in drawn)
    assert found.p_value == pytest.approx((count + 1) / 501)
    means = sorted(difference[row].mean() for row in drawn)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))


def test_effect_equals_scipys_interval() -> None:
    rng = np.random.default_rng(6)
    first, second = rng.random(40), rng.random(40)
    found = effect(first, second, alpha=0.1)
    theirs = scipy.stats.ttest_rel(first, second).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))
    difference = first - second
    assert found.size == pytest.approx(difference.mean() / difference.std(ddof=1))


def test_bootstrap_and_effect_of_degenerate_samples() -> None:
    same, one = np.full(5, 0.3), np.array([0.4])
    assert paired_bootstrap(same, same).p_value == 1.0
    assert paired_bootstrap(same, same - 0.1).p_value == 0.0
    assert paired_bootstrap(one, one - 0.2).p_value == 1.0
    assert effect(same, same)[:2] == (0.0, 0.0)
    assert effect(same, same - 0.1).size is None
    assert (effect(one, one - 0.2).low, effect(one, one).size) == (-math.inf, 0.0)
