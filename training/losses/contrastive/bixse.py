"""BiXSE: binary cross-entropy of every pair in the batch against its grade."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import DataError
from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.reduction import (
    refuse_idle,
    scale_for,
    weighted_mean,
)
from sluice.training.losses.math.soft_labels import SoftTarget, check_target, soft_labels
from sluice.training.losses.math.teacher_watch import Reliability
from sluice.training.protocol import ScoreMatrix

SIGLIP_BIAS = -10.0


@dataclass(eq=False)
@checked("bixse.")
class BiXSE(LossBase):
    """Mean over pairs of ``-y log sigmoid(z) - (1 - y) log(1 - sigmoid(z))``, ``z = a s + b``.

    y is the label divided by ``max_grade``: graded relevance, 0 for documents of other queries.
    ``scale`` is where a begins: left out, 20 for cosine and 1 for dot products and logits. a (as
    its logarithm) and b are trained with ``learning_rate`` (None: the encoder's) unless
    ``learn_scale`` or ``learn_bias`` is false. ``bias_init`` is where b begins: ``siglip`` is -10
    (for a scale of 10), ``base_rate`` makes the mean sigmoid of the first batch its mean label, a
    number is itself. Weights count a query's pairs. The log has the expected calibration error of
    sigmoid(z) against y; ``losses.math.teacher_watch`` draws the curve.

    ``target`` other than ``labels`` takes the y of documents that a teacher scored from it:
    ``logits`` are sigmoids of its scores over ``teacher_temperature`` (left out, 1),
    ``probabilities`` its scores as they are.
    """

    summary = "cross-entropy of each pair against a grade in [0, 1], learnt scale and bias"
    paper = "Zhai et al. 2023 (SigLIP); Tsirigotis et al. 2025 (BiXSE)"

    scale: Annotated[float | None, Gt(0)] = None
    learn_scale: Annotated[bool, "Whether the scale is trained."] = True
    learn_bias: Annotated[bool, "Whether the bias is trained."] = True
    bias_init: Literal["base_rate", "siglip"] | float = "base_rate"
    max_grade: Annotated[float, Gt(0), "The grade that counts as 1; labels are divided by it."] = (
        1.0
    )
    similarity: Literal["auto", "cosine", "dot"] = "auto"
    negatives: Negatives = "all"
    learning_rate: Annotated[
        float | None, "The learning rate of the loss's own parameters; null: the trainer's."
    ] = 1e-2
    target: Annotated[
        SoftTarget, "Labels, or a teacher's: sigmoids of its logits, or probabilities."
    ] = "labels"
    teacher_temperature: Annotated[float | None, "Divides the teacher's logits; left out, 1."] = (
        None
    )

    def __post_init__(self) -> None:
        if not (self.learn_scale or self.learn_bias):
            because = "neither scale nor bias is learnt; learn one"
            refuse_idle("bixse", self, ["learning_rate"], because)
        check_target("bixse", self.target, self.teacher_temperature)
        scale = scale_for(self.scale, self.similarity)
        begin = {"siglip": SIGLIP_BIAS, "base_rate": math.nan}  # nan: a first batch decides
        bias = begin[self.bias_init] if isinstance(self.bias_init, str) else self.bias_init
        self._seen = Reliability()
        self.log_scale = nn.Parameter(
            torch.tensor(math.log(scale), dtype=torch.float32), requires_grad=self.learn_scale
        )
        self.bias = nn.Parameter(
            torch.tensor(bias, dtype=torch.float32), requires_grad=self.learn_bias
        )

    @property
    def needs_teacher(self) -> bool:
        """Whether a teacher gives the labels."""
        return self.target != "labels"

    def parameters(self) -> list[nn.Parameter]:
        """Return those of log-scale and bias that are learnt."""
        return [part for part in (self.log_scale, self.bias) if part.requires_grad]

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        return {"log_scale": self.log_scale.detach().clone(), "bias": self.bias.detach().clone()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take up the state a checkpoint kept."""
        self.log_scale.data.copy_(state["log_scale"])
        self.bias.data.copy_(state["bias"])

    def notes(self) -> dict[str, float]:
        """Return scale and bias, and the calibration error of the pairs since the last call."""
        scalars = {"scale": math.exp(self.log_scale.item()), "bias": self.bias.item()}
        error = self._seen.error
        if error is None:
            return scalars
        self._seen = Reliability()
        return {**scalars, "calibration_error": error}

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        scores, counted, weights = matrix.scores, matrix.mask, matrix.weights
        graded = matrix._replace(labels=matrix.labels.to(scores.dtype) / self.max_grade)
        grades = soft_labels("bixse", graded, self.target, self.teacher_temperature)
        grades = grades.masked_fill(~counted, 0.0)
        if grades.numel() and (grades.min() < 0 or grades.max() > 1):
            worst = grades.max() if grades.max() > 1 else grades.min()
            raise DataError(
                f"bixse: a label of {worst.item() * self.max_grade:g}, expected 0 to max_grade = "
                f"{self.max_grade:g}; set max_grade to the highest grade of the data"
            )
        scaled = scores.masked_fill(~counted, 0.0) * self.log_scale.exp()
        if self.bias.isnan():
            share = counted if weights is None else counted * weights[:, None]
            self.bias.data.fill_(base_rate_bias(scaled.detach(), grades, share))
        logits = scaled + self.bias
        share = counted if weights is None else counted * weights[:, None]
        self._seen.add(logits.detach().sigmoid(), grades, share.to(scores.dtype))
        cells = binary_cross_entropy_with_logits(logits, grades, reduction="none")
        return weighted_mean(cells, counted, weights)


def base_rate_bias(scaled: Tensor, grades: Tensor, share: Tensor) -> float:
    """Return b for which the mean of ``sigmoid(scaled + b)`` is the mean grade, by bisection.

    A cell counts ``share`` times. Grades that are all 0 or all 1 are held half a cell away from it.
    """
    used = share > 0
    share, scaled = share[used].double(), scaled[used].double()
    if not len(share):
        return 0.0
    margin = 0.5 / len(share)
    mean = (grades[used].double() * share).sum() / share.sum()
    rate = min(max(mean.item(), margin), 1 - margin)
    odds = math.log(rate) - math.log1p(-rate)
    low, high = odds - scaled.max().item(), odds - scaled.min().item()
    for _ in range(64):
        middle = (low + high) / 2
        below = ((scaled + middle).sigmoid() * share).sum() / share.sum() < rate
        low, high = (middle, high) if below else (low, middle)
    return (low + high) / 2
