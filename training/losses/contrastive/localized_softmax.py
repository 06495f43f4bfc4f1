"""Localised softmax: the positive against the negatives mined for the same query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sluice.encoders.tuning.learning import Form
from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.contrastive.contrast import contrast
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
class LocalizedSoftmax(LossBase):
    """``mean_i [log sum_j exp(s_ij) - s_i+]``, j over the group of query i only.

    For cross-encoders over raw logits.
    """

    summary = "softmax over the query's own group"
    paper = "Gao, Dai and Callan 2021 (LCE)"

    forms: ClassVar[tuple[Form, ...]] = ("scores",)  # what it trains
    negatives: ClassVar[Negatives] = "own"  # a group holds the query's own documents and no others

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        return contrast(matrix)
