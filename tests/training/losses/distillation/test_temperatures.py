"""A teacher's and a student's temperatures apart, and the alarm of a teacher that says nothing."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import torch
from score_losses import NAN, cells, drawn, same
from torch import Tensor
from vector_batches import examples, made, random_batch

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.losses.math.teacher_watch import QUERIES

# Losses with both temperatures: their settings, and whether the divergence goes both ways.
APART = [
    ({"type": "kl_div", "temperature": 0.3, "teacher_temperature": 2.0}, "forward"),
    (
        {"type": "kl_div", "temperature": 0.3, "teacher_temperature": 2.0, "direction": "reverse"},
        "reverse",
    ),
    ({"type": "judge_kl", "temperature": 0.3, "judge_temperature": 2.0}, "both"),
    (
        {"type": "list_net", "target": "teacher", "temperature": 0.3, "target_temperature": 2.0},
        "cross",
    ),
]


def shares(values: list[Tensor], divisor: float) -> list[Tensor]:
    total = torch.stack([(value / divisor).exp() for value in values]).sum()
    return [(value / divisor).exp() / total for value in values]


@pytest.mark.parametrize(("spec", "way"), APART)
def test_the_formula(spec: dict[str, Any], way: str) -> None:
    scores, labels, mask, teacher = drawn(4)
    rows = []
    for row, columns in cells(mask, teacher):
        if len(columns) < 2:
            continue
        student = shares([scores[row, c] for c in columns], 0.3)
        target = shares([teacher[row, c] for c in columns], 2.0)
        forward = sum(t * (t.log() - s.log()) for t, s in zip(target, student, strict=True))
        reverse = sum(s * (s.log() - t.log()) for t, s in zip(target, student, strict=True))
        cross = -sum(t * s.log() for t, s in zip(target, student, strict=True))
        both = (forward + reverse) / 2
        rows.append({"forward": forward, "reverse": reverse, "both": both, "cross": cross}[way])
    straight = torch.stack(rows).mean()  # type: ignore[arg-type]
    loss = made(**{"kind" if k == "type" else k: v for k, v in spec.items()})
    same(loss(scores, labels, mask, None, teacher), straight, scores)


def test_a_judge_has_the_students_temperature_unless_told() -> None:
    scores, labels, mask, teacher = drawn(4)
    one = made("judge_kl", temperature=0.7)(scores, labels, mask, None, teacher)
    two = made("judge_kl", temperature=0.7, judge_temperature=0.7)
    assert one.item() == two(scores, labels, mask, None, teacher).item()


def test_the_temperatures_of_mixing_are_those_of_kl_div() -> None:
    batch = random_batch(examples(3, negatives=2), teacher=torch.randn(3, 9, dtype=torch.float64))
    plain = made("mixing", loss={"type": "info_nce", "temperature": 0.1}).over(batch)
    for given, student, teacher in (
        ({}, 0.05, 0.05),
        ({"distillation_temperature": 0.2}, 0.2, 0.2),
        ({"distillation_temperature": 0.2, "distillation_teacher_temperature": 3.0}, 0.2, 3.0),
        ({"distillation_teacher_temperature": 3.0}, 0.05, 3.0),
    ):
        loss = made(
            "mixing", loss={"type": "info_nce", "temperature": 0.1}, distillation=0.5, **given
        )
        kl = made("kl_div", temperature=student, teacher_temperature=teacher)
        expected = plain + 0.5 * kl(*batch.score_matrix())
        assert loss.over(batch).item() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("key", ["distillation_temperature", "distillation_teacher_temperature"])
def test_a_temperature_of_no_distillation_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="which weighs nothing: set distillation above 0, or lea"):
        made("mixing", **{key: 0.1})


KEYS = {
    "kl_div": "kl_div.teacher_temperature",
    "judge_kl": "judge_kl.judge_temperature",
    "list_net": "list_net.target_temperature",
    "mixing": "mixing.distillation_teacher_temperature",
}


SETTINGS: dict[str, dict[str, Any]] = {
    "list_net": {"target": "teacher"},
    "mixing": {"distillation": 1.0, "distillation_temperature": 1.0},
    "judge_kl": {"temperature": 1.0},
}


def seen(kind: str, spread: float, queries: int) -> dict[str, float]:
    """Let a loss see batches of four queries whose teacher's scores spread so far."""
    loss = made(kind, **SETTINGS.get(kind, {}))
    for _ in range(queries // 4):
        teacher = torch.tensor([0.0, 1.0, 2.0]).repeat(4, 4) * spread
        own = {"negatives": "own"}
        loss.over(random_batch(examples(4, negatives=2), options=own, teacher=teacher.double()))
    notes: dict[str, float] = loss.notes()
    return notes


@pytest.mark.parametrize("kind", KEYS)
def test_a_flat_teacher_alarms_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sluice"):
        notes = seen(kind, 0.01, 2 * QUERIES)
    assert notes["teacher_entropy"] > 0.999
    (record,) = caplog.records
    text = record.getMessage()
    assert f"the teacher is flat (all documents alike) for 64 of the first {QUERIES}" in text
    assert f"lower {KEYS[kind]} (now 1; a query's scores deviate by 0.00816" in text


@pytest.mark.parametrize("kind", KEYS)
def test_a_one_hot_teacher_alarms_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sluice"):
        notes = seen(kind, 50.0, 2 * QUERIES)
    assert notes["teacher_entropy"] < 1e-6
    (record,) = caplog.records
    assert "one-hot (a label, no more)" in record.getMessage()
    assert f"raise {KEYS[kind]} (now 1; a query's scores deviate by 40.8" in record.getMessage()


@pytest.mark.parametrize(("spread", "queries"), [(1.0, 2 * QUERIES), (0.01, QUERIES - 4)])
def test_a_teacher_that_tells_documents_apart_is_left_alone(
    spread: float, queries: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "sluice"):
        seen("kl_div", spread, queries)
    assert not caplog.records


def test_a_teacher_of_equal_scores_cannot_be_helped(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sluice"):
        seen("kl_div", 0.0, QUERIES)
    assert "take another teacher: it gives a query's documents equal scores" in caplog.text


def test_the_entropy_is_the_mean_over_queries_as_a_share_of_the_highest() -> None:
    loss = made("kl_div")
    assert loss.notes() == {}
    scores = torch.zeros(3, 3, dtype=torch.float64)
    teacher = torch.tensor([[0.0, 0.0, NAN], [0.0, 1.0, 2.0], [5.0, NAN, NAN]])
    loss(scores, torch.eye(3), None, None, teacher.double())
    weights = [math.exp(value) for value in (0, 1, 2)]
    entropy = -sum(w / sum(weights) * math.log(w / sum(weights)) for w in weights)
    mean = (1.0 + entropy / math.log(3)) / 2  # the third has a single document
    assert loss.notes() == pytest.approx({"teacher_entropy": mean})
    assert loss.notes() == {}  # since the last call
