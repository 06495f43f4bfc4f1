import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.evaluation.significance import equivalence

PAIRS = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=12)


def test_fixed_sample_equals_statsmodels() -> None:
    weightstats = pytest.importorskip("statsmodels.stats.weightstats")
    rng = np.random.default_rng(3)
    first = rng.random(40)
    second = first + rng.normal(0.01, 0.1, 40)
    for bound in (0.005, 0.02, 0.05, 0.3):
        found = equivalence(first, second, bound)
        p, lower, upper = weightstats.ttost_paired(first, second, -bound, bound)
        assert found.p_value == pytest.approx(p, rel=1e-10)
        assert found.above_lower == pytest.approx(lower[1], rel=1e-10)
        assert found.below_upper == pytest.approx(upper[1], rel=1e-10)
        assert found.difference == pytest.approx(float((first - second).mean()))


@settings(derandomize=True, max_examples=50, deadline=None)
@given(PAIRS, st.floats(0.01, 0.5))
def test_equals_two_one_sided_tests_of_scipy(
    pairs: list[tuple[float, float]], bound: float
) -> None:
    first, second = np.array(pairs).T
    difference = first - second
    if difference.std() < 1e-9:
        return
    lower = scipy.stats.ttest_1samp(difference, -bound, alternative="greater").pvalue
    upper = scipy.stats.ttest_1samp(difference, bound, alternative="less").pvalue
    found = equivalence(first, second, bound)
    assert found.above_lower == pytest.approx(lower, abs=1e-9)
    assert found.below_upper == pytest.approx(upper, abs=1e-9)
    assert found.p_value == max(found.above_lower, found.below_upper)


@pytest.mark.parametrize(
    ("shift", "expected"), [(0.0, 0.0), (0.25, 0.0), (0.5, 1.0), (-0.5, 1.0), (0.75, 1.0)]
)
def test_one_difference_everywhere(shift: float, expected: float) -> None:
    second = np.array([0.25, 0.5, 1.0, 0.125])
    assert equivalence(second + shift, second, 0.5).p_value == expected


def test_equal_differences_that_round() -> None:
    first, second = np.full(7, 0.3), np.full(7, 0.2)
    assert equivalence(first, second, 0.2).p_value == 0.0
    assert equivalence(first, second, 0.05).p_value == 1.0


def test_differences_too_small_to_square() -> None:
    first, second = np.array([1e-200, 2e-200]), np.zeros(2)
    assert equivalence(first, second, 0.1).p_value == 0.0


def test_one_query_shows_nothing() -> None:
    assert equivalence(np.array([0.5]), np.array([0.5]), 0.1).p_value == 1.0


def test_order_of_the_systems_changes_nothing_but_the_sign() -> None:
    rng = np.random.default_rng(5)
    first, second = rng.random(9), rng.random(9)
    one, two = equivalence(first, second, 0.1), equivalence(second, first, 0.1)
    assert one.p_value == pytest.approx(two.p_value)
    assert one.difference == pytest.approx(-two.difference)


@pytest.mark.parametrize("bound", [0, -0.1, float("nan"), float("inf"), True])
def test_bounds_that_are_none(bound: float) -> None:
    with pytest.raises(ConfigError, match="bound"):
        equivalence(np.zeros(3), np.zeros(3), bound)


def test_values_that_are_not_paired() -> None:
    with pytest.raises(DataError, match=r"\(3,\) and \(2,\)"):
        equivalence(np.zeros(3), np.zeros(2), 0.1)
    with pytest.raises(DataError, match="a query at least"):
        equivalence(np.zeros(0), np.zeros(0), 0.1)
