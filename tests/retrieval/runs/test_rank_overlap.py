import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import kendalltau

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.runs.several_runs import (
    compare_rankings,
    kendall_tau,
    overlap_at,
    rank_biased_overlap,
)

LISTS = st.lists(st.sampled_from("abcdefghijklmno"), unique=True)


def literal_rbo(first: list[str], second: list[str], p: float) -> float:
    """Equation 32 of the paper, term by term."""
    short, long = sorted((first, second), key=len)
    s, length = len(short), len(long)
    shared = [len(set(short[:d]) & set(long[:d])) for d in range(length + 1)]
    seen = sum(shared[d] / d * p**d for d in range(1, length + 1))
    assumed = sum(shared[s] * (d - s) / (s * d) * p**d for d in range(s + 1, length + 1))
    last = (shared[length] - shared[s]) / length + shared[s] / s
    return (1 - p) / p * (seen + assumed) + last * p**length


@settings(derandomize=True, max_examples=200, deadline=None)
@given(LISTS, LISTS, st.sampled_from([0.5, 0.7, 0.9, 0.98]))
def test_rbo_is_the_papers(first: list[str], second: list[str], p: float) -> None:
    value = rank_biased_overlap(first, second, p)
    assert rank_biased_overlap(second, first, p) == value
    assert -1e-12 <= value <= 1 + 1e-12
    if first and second:
        assert value == pytest.approx(literal_rbo(first, second, p), abs=1e-12)


def test_rbo_of_lists_worked_by_hand() -> None:
    p = 0.9
    assert rank_biased_overlap(["a", "b", "c"], ["a", "b", "c"], p) == pytest.approx(1, abs=1e-15)
    assert rank_biased_overlap(["a", "b"], ["c", "d"], p) == 0.0
    assert rank_biased_overlap([], [], p) == 1.0
    assert rank_biased_overlap([], ["a"], p) == 0.0
    # Swapped: nothing shared at depth 1, all from depth 2 on: p.
    assert rank_biased_overlap(["a", "b"], ["b", "a"], p) == pytest.approx(p, abs=1e-15)
    # First the same, then never: agreement 1/d at depth d, of which half at depth 2 is carried on.
    assert rank_biased_overlap(["a", "x"], ["a", "y"], p) == pytest.approx(
        (1 - p) * (1 + p / 2) + p**2 / 2, abs=1e-15
    )
    # Endless: 1 - p and p^d / d of a list that agrees on the first only.
    first = ["a", *(f"x{i}" for i in range(400))]
    second = ["a", *(f"y{i}" for i in range(400))]
    expected = (1 - p) / p * -math.log(1 - p)
    assert rank_biased_overlap(first, second, p) == pytest.approx(expected, abs=1e-12)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(LISTS, LISTS)
def test_tau_and_overlap_equal_scipy_and_sets(first: list[str], second: list[str]) -> None:
    shared = [doc for doc in first if doc in second]
    tau = kendall_tau(first, second)
    if len(shared) < 2:
        assert tau is None
    else:
        ranks = [second.index(doc) for doc in shared]
        expected = kendalltau(np.arange(len(ranks)), ranks).statistic
        assert tau == pytest.approx(expected, abs=1e-12)
    most = max(len(first[:5]), len(second[:5]))
    common = len({*first[:5]} & {*second[:5]})
    assert overlap_at(first, second, 5) == (common / most if most else 1.0)


def test_runs_are_compared_over_shared_queries() -> None:
    first = Run({"q1": Ranking(["a", "b"], [2, 1]), "q2": Ranking(["a"], [1]), "q3": {"z": 1.0}})
    second = Run({"q1": Ranking(["b", "a"], [2, 1]), "q2": Ranking(["c"], [1])})
    found = compare_rankings(first, second, k=1)
    assert found == pytest.approx((0.45, 0.0, -1.0, 2))
    assert compare_rankings(first, second, k=2).overlap == 0.5
    assert compare_rankings(Run({"q2": {"a": 1.0}}), second).tau is None
    assert compare_rankings(first, first)[:3] == pytest.approx((1.0, 1.0, 1.0))


def test_bad_lists_are_named() -> None:
    with pytest.raises(DataError, match="'a' is in the list twice"):
        rank_biased_overlap(["a", "a"], ["b"])
    with pytest.raises(ConfigError, match="expected a number between 0 and 1"):
        rank_biased_overlap(["a"], ["b"], 1.0)
    with pytest.raises(ConfigError, match="doc_ids"):
        rank_biased_overlap(Ranking(["a"], [1.0]), ["a"])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no query of 'one'"):
        compare_rankings(Run({"q": {"a": 1.0}}, name="one"), Run({"r": {"a": 1.0}}))
