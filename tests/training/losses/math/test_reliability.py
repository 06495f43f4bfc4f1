"""The reliability curve against its definition, and in a loss that learns grades."""

from __future__ import annotations

import random

import pytest
import torch

from sluice.training.losses.contrastive.pairs import BiXSE
from sluice.training.losses.math.teacher_watch import BINS, Reliability, reliability


def test_the_definition() -> None:
    drawn = random.Random(2)
    pairs = [(drawn.random(), drawn.choice([0.0, 0.5, 1.0])) for _ in range(500)]
    pairs += [(1.0, 1.0), (0.0, 0.0), (0.5, 1.0)]
    found = reliability(
        *(torch.tensor(side, dtype=torch.float64) for side in zip(*pairs, strict=True))
    )
    error = 0.0
    for place, one in enumerate(found.curve):
        low, high = place / BINS, (place + 1) / BINS
        inside = [(p, y) for p, y in pairs if low <= p < high or (p == high == 1.0)]
        predicted = sum(p for p, _ in inside) / len(inside)
        observed = sum(y for _, y in inside) / len(inside)
        assert one == pytest.approx((low, high, len(inside), predicted, observed))
        error += len(inside) / len(pairs) * abs(predicted - observed)
    assert found.error == pytest.approx(error, rel=1e-12)


def test_weights_and_nothing() -> None:
    assert Reliability().error is None
    assert Reliability().curve == []
    found = Reliability(2)
    found.add(
        torch.tensor([0.2, 0.4, 0.9]), torch.tensor([0.0, 1.0, 1.0]), torch.tensor([3.0, 1, 0])
    )
    (only,) = found.curve
    assert only == pytest.approx((0.0, 0.5, 4.0, 0.25, 0.25))
    assert found.error == pytest.approx(0.0, abs=1e-7)


def test_what_is_calibrated_has_no_error_and_what_is_sure_and_wrong_has_all() -> None:
    grades = torch.tensor([0.1, 0.3, 0.7])
    assert reliability(grades, grades).error == pytest.approx(0.0)
    assert reliability(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])).error == 1.0


def test_bixse_notes_the_error_of_the_steps_since() -> None:
    loss = BiXSE(scale=1.0, bias_init=0.0)
    assert "calibration_error" not in loss.notes()
    scores = torch.tensor([[2.0, -1.0], [0.5, 3.0]], dtype=torch.float64)
    labels, mask = torch.eye(2), torch.tensor([[True, True], [False, True]])
    loss(scores, labels, mask, torch.tensor([1.0, 2.0]))
    expected = Reliability()
    expected.add(scores.sigmoid(), labels, mask * torch.tensor([[1.0], [2.0]]))
    assert loss.notes()["calibration_error"] == pytest.approx(expected.error)
    assert "calibration_error" not in loss.notes()
