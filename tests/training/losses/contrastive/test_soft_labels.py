"""Binary cross-entropy against a teacher's soft labels, written out in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from score_losses import NAN, drawn, gradient
from vector_batches import made

from sluice.encoders.foundation.errors import ConfigError, DataError


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def fixed(kind: str, **options: Any) -> Any:
    """The loss with z = 2 s - 0.5 for bixse, and z = s / 0.5 for bce."""
    if kind == "bixse":
        more = {"scale": 2.0, "bias_init": -0.5, "learn_scale": False, "learn_bias": False}
        return made("bixse", **more, **options)
    return made("bce", temperature=0.5, **options)


def straight(
    kind: str, scores: Any, labels: Any, mask: Any, teacher: Any, target: str, divisor: float
) -> tuple[float, list[list[float]]]:
    """The mean over counted cells, and its gradient: (sigmoid(z) - y) dz/ds / cells."""
    total, cells = 0.0, int(mask.sum())
    slopes = [[0.0] * scores.shape[1] for _ in scores]
    for row in range(len(scores)):
        for column in range(scores.shape[1]):
            if not mask[row, column]:
                continue
            score, taught = float(scores[row, column]), float(teacher[row, column])
            z = 2 * score - (0.5 if kind == "bixse" else 0.0)
            y = float(labels[row, column])
            if target != "labels" and not math.isnan(taught):
                y = sigmoid(taught / divisor) if target == "logits" else taught
            total += -y * math.log(sigmoid(z)) - (1 - y) * math.log(1 - sigmoid(z))
            slopes[row][column] = 2 * (sigmoid(z) - y) / cells
    return total / cells, slopes


@pytest.mark.parametrize("kind", ["bce", "bixse"])
@pytest.mark.parametrize(
    ("target", "temperature"),
    [("labels", None), ("logits", None), ("logits", 4.0), ("probabilities", None)],
)
def test_the_formula(kind: str, target: str, temperature: float | None) -> None:
    scores, labels, mask, teacher = drawn(8)
    labels = (labels > 1).double()
    if target == "probabilities":
        teacher = teacher.sigmoid()
    settings: dict[str, Any] = {} if temperature is None else {"teacher_temperature": temperature}
    loss = fixed(kind, target=target, **settings)
    assert loss.needs_teacher == (target != "labels")
    value = loss(scores, labels, mask, None, teacher)
    expected, slopes = straight(
        kind, scores.detach(), labels, mask, teacher, target, temperature or 1.0
    )
    assert value.item() == pytest.approx(expected, rel=1e-6)
    found = gradient(value, scores)
    assert (found - torch.tensor(slopes, dtype=torch.float64)).abs().max() < 1e-7


@pytest.mark.parametrize("kind", ["bce", "bixse"])
def test_what_the_teacher_did_not_score_keeps_its_label(kind: str) -> None:
    scores, labels, mask, _ = drawn(8)
    labels = (labels > 1).double()
    silent = torch.full_like(scores, NAN)
    soft = fixed(kind, target="logits")(scores, labels, mask, None, silent)
    assert soft.item() == fixed(kind)(scores, labels, mask, None, None).item()


@pytest.mark.parametrize("kind", ["bce", "bixse"])
def test_a_batch_without_documents_is_zero(kind: str) -> None:
    scores, labels, mask, teacher = drawn(8)
    value = fixed(kind, target="logits")(
        scores, (labels > 1).double(), torch.zeros_like(mask), None, teacher
    )
    assert value.item() == 0.0


@pytest.mark.parametrize("kind", ["bce", "bixse"])
def test_what_does_not_fit_is_said(kind: str) -> None:
    scores, labels, mask, teacher = drawn(8)
    labels = (labels > 1).double()
    with pytest.raises(DataError, match=f"{kind}: the batch has no teacher's scores"):
        fixed(kind, target="logits")(scores, labels, mask, None, None)
    with pytest.raises(DataError, match="expected a probability from 0 to 1; set target: logits"):
        fixed(kind, target="probabilities")(scores, labels, mask, None, teacher)
    with pytest.raises(ConfigError, match=r"loss.target: 'logit'.*did you mean 'logits'"):
        made(kind, target="logit")
    with pytest.raises(ConfigError, match=rf"{kind}.teacher_temperature: divides a teacher's log"):
        made(kind, target="probabilities", teacher_temperature=2.0)
    with pytest.raises(ConfigError, match=rf"{kind}.teacher_temperature: 0"):
        made(kind, target="logits", teacher_temperature=0)


def test_labels_out_of_a_binary_range_are_still_refused() -> None:
    loss = fixed("bixse", target="logits")
    with pytest.raises(DataError, match="bixse: a label of 3"):
        loss(torch.zeros(1, 1), torch.tensor([[3.0]]), None, None, torch.tensor([[NAN]]))
