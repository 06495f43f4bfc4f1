"""Orders of systems under two sets of labels, against scipy and by hand."""

import math

import numpy as np
import pytest
from scipy.stats import kendalltau

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.runs.several_runs import rank_biased_overlap
from sluice.retrieval.studies.judging.labelling import kendall_tau_b, system_agreement

RUNS = {
    "right": {"q": {"a": 3.0, "b": 2.0, "c": 1.0}},
    "middle": {"q": {"b": 3.0, "a": 2.0, "c": 1.0}},
    "wrong": {"q": {"c": 3.0, "b": 2.0, "a": 1.0}},
}


@pytest.mark.parametrize("seed", range(6))
def test_tau_is_scipys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = rng.integers(5, size=(2, 9)).astype(float)  # with ties
    theirs = kendalltau(one, other, variant="b").statistic
    assert kendall_tau_b(one, other) == pytest.approx(theirs, abs=1e-12)


def test_tau_at_its_ends() -> None:
    assert kendall_tau_b([1, 2, 3], [4, 5, 9]) == pytest.approx(1.0)
    assert kendall_tau_b([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert kendall_tau_b([1, 1, 1], [3, 2, 1]) is None
    with pytest.raises(DataError, match="expected pairs"):
        kendall_tau_b([1, 2], [1, 2, 3])


def test_overlap_by_hand() -> None:
    assert rank_biased_overlap([*"abc"], [*"abc"], 0.7) == pytest.approx(1.0)
    assert rank_biased_overlap([*"abc"], [*"xyz"], 0.7) == 0.0
    p = 0.6  # depths agree by 0, 1, 2/3, and so on beyond
    by_hand = (1 - p) / p * (p**2 + 2 / 3 * p**3) + 2 / 3 * p**3
    assert rank_biased_overlap([*"abc"], [*"bax"], p) == pytest.approx(by_hand)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        rank_biased_overlap([*"a"], [*"a"], 1.0)


def test_identical_labels_agree_on_systems() -> None:
    labels = {"q": {"a": 2, "b": 1, "c": 0}}
    (found,) = system_agreement(RUNS, labels, labels, ["nDCG@3"])
    assert found.tau == pytest.approx(1.0)
    assert found.rbo == pytest.approx(1.0)
    assert [each.system for each in found.systems] == ["right", "middle", "wrong"]
    assert all(each.difference == 0 and each.bias == 0 for each in found.systems)


def test_a_judge_that_favours_a_system_is_seen() -> None:
    human = {"q": {"a": 2, "b": 1, "c": 0}, "only": {"a": 1}}
    machine = {"q": {"a": 0, "b": 1, "c": 2}}
    (found,) = system_agreement(RUNS, human, machine, "nDCG@3", p=0.5)
    assert found.queries == 1
    assert found.tau == pytest.approx(-1.0)
    wrong = found.systems[-1]
    assert (wrong.system, wrong.first_place, wrong.second_place) == ("wrong", 3, 1)
    shared = {"q": human["q"]}
    before = {name: evaluate(run, shared, ["nDCG@3"]).mean["nDCG@3"] for name, run in RUNS.items()}
    after = {name: evaluate(run, machine, ["nDCG@3"]).mean["nDCG@3"] for name, run in RUNS.items()}
    changes = {name: after[name] - before[name] for name in RUNS}
    for each in found.systems:
        assert each.difference == pytest.approx(changes[each.system])
        assert each.bias == pytest.approx(changes[each.system] - sum(changes.values()) / 3)
    assert sum(each.bias for each in found.systems) == pytest.approx(0.0)
    # right, middle, wrong against wrong, middle, right: no overlap, then 1 of 2, then all.
    assert found.rbo == pytest.approx(0.25 / 2 + 0.125 + 0.125)
    assert "Kendall's tau-b -1.0000" in str(found)


def test_all_tied_and_too_few() -> None:
    labels = {"q": {"x": 1}}
    (found,) = system_agreement(RUNS, labels, labels, ["nDCG@3"])
    assert found.tau is None
    assert "undefined" in str(found)
    assert not math.isnan(found.rbo)
    with pytest.raises(ConfigError, match="two or more"):
        system_agreement({"right": RUNS["right"]}, labels, labels, ["nDCG@3"])
    with pytest.raises(DataError, match="share no query"):
        system_agreement(RUNS, labels, {"p": {"x": 1}}, ["nDCG@3"])
