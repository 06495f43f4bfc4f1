import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.significance import fisher_randomisation, holm, paired_t_test

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
