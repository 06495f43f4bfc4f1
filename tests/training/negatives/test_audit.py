"""The false-negative audit: its AUC against brute force, and what it says of planted positives."""

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training import JudgedPair, Mining, audit_mining
from sluice.training.negatives.audit import auc, hidden_positives
from sluice.training.negatives.settings import MODES


def by_pairs(values: Sequence[float], positive: Sequence[bool]) -> float:
    wins = [
        1.0 if high > low else 0.5 if high == low else 0.0
        for high, is_high in zip(values, positive, strict=True) if is_high
        for low, is_low in zip(values, positive, strict=True) if not is_low
    ]  # fmt: skip
    return sum(wins) / len(wins) if wins else math.nan


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), max_size=30))
def test_auc_is_that_of_all_pairs(pairs: list[tuple[int, bool]]) -> None:
    values, positive = [value for value, _ in pairs], [is_one for _, is_one in pairs]
    found = auc(np.array(values, np.float64), np.array(positive, np.bool_))
    assert found == pytest.approx(by_pairs(values, positive), abs=1e-10, nan_ok=True)


def world(
    queries: int = 60,
) -> tuple[dict[str, list[tuple[str, float]]], dict[str, dict[str, int]]]:
    """Lists whose positives score near each other, at another level for every query."""
    rng = np.random.default_rng(1)
    ranked, positives = {}, {}
    for query in range(queries):
        level = rng.uniform(0.4, 1.0)
        known = [f"{query}-p{place}" for place in range(4)]
        scores = {name: level * rng.uniform(0.93, 1.0) for name in known}
        scores |= {f"{query}-{i}": level * s for i, s in enumerate(rng.uniform(0.3, 1.1, 80))}
        ranked[f"{query}"] = sorted(scores.items(), key=lambda hit: -hit[1])
        positives[f"{query}"] = dict.fromkeys(known, 1)
    return ranked, positives


def test_percentage_rejects_planted_false_negatives_best() -> None:
    """3.1: rejection rate PercPos > shifted > naive; 3.4: AUC by the positive's score."""
    ranked, positives = world()
    found = audit_mining({"dense": ranked}, positives, share=0.25)
    modes = {mode.mode: mode for mode in found.modes}
    assert list(modes) == [name for name in MODES if name != "judge"]
    assert (found.hidden, found.found, found.positives, found.queries) == (60, 60, 240, 60)
    assert modes["percentage"].rejected > modes["shifted"].rejected > modes["naive"].rejected == 0
    assert modes["naive"].auc == 0.5
    assert modes["naive"].lost == 0
    assert modes["percentage"].auc > modes["absolute"].auc
    assert modes["percentage"].auc > 0.75
    assert modes["percentage"].false_negatives == 0
    again = audit_mining({"dense": ranked}, positives, share=0.25)
    assert again == found
    assert audit_mining({"dense": ranked}, positives, share=0.25, seed=1) != found
    twice = audit_mining({"dense": ranked, "same": ranked}, positives, share=0.25)
    assert twice.modes == found.modes


def test_auc_of_a_mode_is_that_of_its_number() -> None:
    ranked, positives = world(12)
    hidden = hidden_positives(positives, 0.25, seed=13)
    values, is_hidden = [], []
    for query, hits in ranked.items():
        left = set(positives[query]) - hidden.get(query, set())
        lowest = min(score for name, score in hits if name in left)
        others = [(name, score) for name, score in hits if name not in left]
        values += [score / lowest for _, score in others]
        is_hidden += [name in hidden.get(query, set()) for name, _ in others]
    modes = {"p": Mining(), "adaptive": Mining.in_mode("adaptive", {"adaptive_margin": [0, 0.3]})}
    found = audit_mining({"x": ranked}, positives, modes, share=0.25).modes
    assert found[0].auc == pytest.approx(by_pairs(values, is_hidden), abs=1e-10)
    rejected = [value >= 0.95 for value in values]
    pairs = list(zip(rejected, is_hidden, strict=True))
    assert found[0].rejected == np.mean([no for no, hides in pairs if hides])
    assert found[0].lost == pytest.approx(np.mean([no for no, hides in pairs if not hides]))
    assert found[1].signal == "score - limit"


def test_a_perfect_judge_has_auc_1() -> None:
    ranked, positives = world(20)

    class Knowing:
        name, needs_texts = "knowing", False

        def scores(self, pairs: Sequence[JudgedPair]) -> list[float]:
            return [float("-p" in pair.document_id) for pair in pairs]

    found = audit_mining({"x": ranked}, positives, share=0.2, judge=Knowing())
    mode = found.modes[-1]
    assert (mode.mode, mode.signal) == ("judge", "judge - positive's")
    assert (mode.auc, mode.rejected, mode.lost, mode.false_negatives) == (1.0, 1.0, 0.0, 0.0)


def test_tables() -> None:
    ranked, positives = world(8)
    found = audit_mining({"x": ranked}, positives, {"one": Mining()}, share=0.2)
    lines = found.to_markdown().splitlines()
    assert lines[0].startswith("| mode | decides by | AUC |")
    assert len(lines) == 3
    assert "6 of 32 positives of 8 queries hidden; 6 of them among the candidates" in str(found)
    assert json.loads(json.dumps(found.as_dict()))["modes"][0]["mode"] == "one"
    nothing = audit_mining({"x": ranked}, positives, {"n": Mining(range_min=90)}, share=0.2)
    assert nothing.as_dict()["modes"][0]["false_negatives"] is None
    assert "| - |" in nothing.to_markdown()


def test_every_query_keeps_a_positive() -> None:
    positives = {f"{q}": dict.fromkeys([f"{q}-{p}" for p in range(q + 1)], 1) for q in range(6)}
    positives["graded"] = {"a": 2, "b": 0}
    hidden = hidden_positives(positives, 0.99, seed=1)
    for query, found in hidden.items():
        assert len(found) < sum(grade > 0 for grade in positives[query].values())
    assert "graded" not in hidden
    assert hidden_positives(positives, 0.99, seed=1) == hidden


def test_nothing_to_audit() -> None:
    with pytest.raises(DataError, match="no query has two positives"):
        audit_mining({}, {"q": {"p": 1}})
    with pytest.raises(ConfigError, match="expected a share"):
        audit_mining({}, {"q": {"p": 1, "o": 1}}, share=20.0)
    with pytest.raises(DataError, match="none of the 1 hidden positives is among"):
        audit_mining({"x": {"q": [("a", 1.0)]}}, {"q": {"p": 1, "o": 1}})
