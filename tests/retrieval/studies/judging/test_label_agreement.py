"""Kappa and alpha against scikit-learn, a literal formula, and published examples."""

import math
import warnings
from itertools import permutations

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.studies.judging.label_agreement import (
    kappa_of,
    krippendorff_alpha,
    label_agreement,
)

NONE = math.nan
# Krippendorff (2011), Computing Krippendorff's Alpha-Reliability: four observers, twelve units.
FOUR = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, NONE, NONE, NONE],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NONE, 3],
    [NONE, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NONE],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NONE],
]


def random_qrels(seed: int, levels: int = 4) -> dict[str, dict[str, int]]:
    rng = np.random.default_rng(seed)
    return {f"q{q}": {f"d{d}": int(rng.integers(levels)) for d in range(12)} for q in range(9)}


def flat(qrels: dict[str, dict[str, int]]) -> list[int]:
    return [grade for grades in qrels.values() for grade in grades.values()]


@pytest.mark.parametrize("seed", range(4))
def test_kappas_are_those_of_scikit_learn(seed: int) -> None:
    one, other = random_qrels(seed), random_qrels(seed + 100)
    for query in list(one)[:6]:
        other[query] = dict(one[query])  # so that they agree on something
    found = label_agreement(one, other, samples=50)
    for weights in ("none", "linear", "quadratic"):
        theirs = cohen_kappa_score(
            flat(one), flat(other), weights=None if weights == "none" else weights
        )
        assert found.kappa[weights].value == pytest.approx(theirs, abs=1e-12)
        assert found.kappa[weights].low <= theirs <= found.kappa[weights].high
    for level, estimate in found.binary.items():
        theirs = cohen_kappa_score(*([g >= level for g in flat(each)] for each in (one, other)))
        assert estimate.value == pytest.approx(theirs, abs=1e-12)
    assert list(found.binary) == [1, 2, 3]
    counts = np.zeros((4, 4), int)
    for a, b in zip(flat(one), flat(other), strict=True):
        counts[a, b] += 1
    assert found.confusion == tuple(map(tuple, counts.tolist()))
    assert found.pairs == counts.sum() == 108


def test_weights_are_by_the_difference_of_grades_where_a_level_is_empty() -> None:
    one = {"q": {"a": 0, "b": 3, "c": 3, "d": 0}}
    other = {"q": {"a": 0, "b": 3, "c": 1, "d": 1}}
    found = label_agreement(one, other, samples=5)
    theirs = cohen_kappa_score([0, 3, 3, 0], [0, 3, 1, 1], weights="linear", labels=[0, 1, 2, 3])
    assert found.levels == (0, 1, 2, 3)
    assert found.kappa["linear"].value == pytest.approx(theirs, abs=1e-12)


def test_identical_labels_give_one_and_a_single_grade_gives_nothing() -> None:
    labels = random_qrels(3)
    found = label_agreement(labels, labels, samples=20)
    for estimate in (*found.kappa.values(), *found.binary.values()):
        assert estimate == (1.0, 1.0, 1.0)
    assert all(value == 1.0 for value in found.alpha.values())
    assert found.same == 1.0
    same = {"q": {"a": 1, "b": 1}}
    found = label_agreement(same, same, samples=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert math.isnan(cohen_kappa_score([1, 1], [1, 1]))
    assert math.isnan(found.kappa["none"].value)
    assert math.isnan(found.alpha["interval"])
    assert "undefined" in str(found)
    assert found.to_dict()["kappa"]["none"] == {"value": None, "low": None, "high": None}


def test_what_only_one_labels_is_left_out_and_counted() -> None:
    one = {"q": {"a": 0, "b": 1, "c": 2}, "r": {"a": 1}}
    other = {"q": {"a": 0, "b": 2, "x": 1}, "s": {"a": 1, "b": 1}}
    found = label_agreement(one, other, samples=5)
    assert (found.queries, found.pairs, found.only_first, found.only_second) == (1, 2, 2, 3)
    with pytest.raises(DataError, match="share no pair"):
        label_agreement({"q": {"a": 1}}, {"q": {"b": 1}})
    with pytest.raises(DataError, match="are these scores"):
        label_agreement({"q": {"a": 1}}, {"q": {"a": 1000}})


def test_the_bootstrap_draws_queries() -> None:
    """With one query there is one sample; copies of queries do not narrow pairs, but queries."""
    one = {"q": {"a": 0, "b": 1, "c": 1, "d": 0}}
    other = {"q": {"a": 0, "b": 1, "c": 0, "d": 0}}
    (low, high) = label_agreement(one, other, samples=30).kappa["none"][1:]
    assert low == high == label_agreement(one, other, samples=30).kappa["none"].value
    first, second = random_qrels(1), random_qrels(1)
    for query in ("q1", "q2", "q3"):
        second[query] = random_qrels(5)[query]
    found = label_agreement(first, second, samples=400, seed=1).kappa["none"]
    drawn = []
    rng = np.random.default_rng(9)
    for _ in range(400):
        chosen = [f"q{n}" for n in rng.integers(9, size=9)]
        pairs = [[g for q in chosen for g in each[q].values()] for each in (first, second)]
        drawn.append(cohen_kappa_score(*pairs))
    assert found.low == pytest.approx(np.percentile(drawn, 2.5), abs=0.06)
    assert found.high == pytest.approx(np.percentile(drawn, 97.5), abs=0.06)


@pytest.mark.parametrize(
    ("scale", "published"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)]
)
def test_alpha_of_the_published_example(scale: str, published: float) -> None:
    assert krippendorff_alpha(FOUR, scale) == pytest.approx(published, abs=0.0005)  # type: ignore[arg-type]


def test_alpha_of_the_published_examples_of_two_observers() -> None:
    """The same paper's sections A (binary) and B (nominal), both without missing ratings."""
    binary = [[0, 1, 0, 0, 0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]]
    assert krippendorff_alpha(binary, "nominal") == pytest.approx(0.095, abs=0.0005)
    words = ["aabbdcccedda", "babbbccceddd"]
    rated = [["abcde".index(letter) for letter in word] for word in words]
    assert krippendorff_alpha(rated, "nominal") == pytest.approx(0.692, abs=0.0005)


def literal_alpha(ratings: np.ndarray, scale: str) -> float:
    """Pair by pair: mean disagreement inside units, each pair 1 / (m - 1), over that of all."""
    units = [[v for v in unit if not math.isnan(v)] for unit in ratings.T]
    units = [unit for unit in units if len(unit) > 1]
    everything = [value for unit in units for value in unit]

    def far(c: float, k: float) -> float:
        if scale == "nominal":
            return float(c != k)
        if scale == "interval":
            return (c - k) ** 2
        low, high = min(c, k), max(c, k)
        between = sum(low <= value <= high for value in everything)
        return float((between - (everything.count(c) + everything.count(k)) / 2) ** 2)

    inside = sum(far(*pair) / (len(u) - 1) for u in units for pair in permutations(u, 2))
    across = sum(far(*pair) for pair in permutations(everything, 2))
    return 1 - (inside / len(everything)) / (across / (len(everything) * (len(everything) - 1)))


@pytest.mark.parametrize("scale", ["nominal", "ordinal", "interval"])
@pytest.mark.parametrize("seed", range(3))
def test_alpha_is_the_literal_formula(scale: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ratings = rng.integers(5, size=(3, 14)).astype(float)
    ratings[1] = np.where(rng.random(14) < 0.5, ratings[0], ratings[1])
    ratings[rng.random(ratings.shape) < 0.25] = math.nan
    found = krippendorff_alpha(ratings, scale)  # type: ignore[arg-type]
    assert found == pytest.approx(literal_alpha(ratings, scale), abs=1e-12)


def test_unknown_weights_and_scales() -> None:
    with pytest.raises(ConfigError, match="expected one of none, linear, quadratic"):
        kappa_of(np.eye(2), "squared")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="nominal, ordinal, interval"):
        krippendorff_alpha(FOUR, "ratio")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="raters, units"):
        krippendorff_alpha([1.0, 2.0], "nominal")  # type: ignore[list-item]
