"""A teacher's scores as labels between 0 and 1, for losses that judge each pair alone."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training.losses.math.packed_cells import scored
from sluice.training.losses.math.reduction import check_positive
from sluice.training.protocol import ScoreMatrix

SoftTarget = Literal["labels", "logits", "probabilities"]


def check_target(loss: str, target: SoftTarget, temperature: float | None) -> None:
    """Raise ``ConfigError`` for a temperature of a target that has none."""
    check_positive(loss, teacher_temperature=temperature)
    if temperature is not None and target != "logits":
        raise ConfigError(
            f"{loss}.teacher_temperature: divides a teacher's logits, and target is {target}; set "
            "target: logits, or leave it out"
        )


def soft_labels(
    loss: str, matrix: ScoreMatrix, target: SoftTarget, temperature: float | None
) -> Tensor:
    """Return labels ``[B, N]`` with the teacher's where it scored a cell that counts.

    ``logits`` are its sigmoids over ``temperature`` (left out, 1), ``probabilities`` its scores.
    Raises ``DataError`` without a teacher, or for a probability outside [0, 1].
    """
    labels = matrix.labels.to(matrix.scores.dtype)
    if target == "labels":
        return labels
    teacher = scored(loss, matrix.teacher).to(matrix.scores.dtype)
    known = matrix.mask & teacher.isfinite()
    if target == "logits":
        return torch.where(known, (teacher / (temperature or 1.0)).sigmoid(), labels)
    given = teacher[known]
    if given.numel() and (given.min() < 0 or given.max() > 1):
        worst = given.max() if given.max() > 1 else given.min()
        raise DataError(
            f"{loss}: a teacher's score of {worst.item():g}, expected a probability from 0 to 1; "
            "set target: logits for scores of any size"
        )
    return torch.where(known, teacher, labels)
