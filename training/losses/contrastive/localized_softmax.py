"""Localised softmax: the positive against the negatives mined for the same query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.contrastive.contrast import contrast


@dataclass(frozen=True, slots=True)
class LocalizedSoftmax(LossBase):
    """``mean_i [log sum_j exp(s_ij) - s_i+]``, j over the group of query i only.

    For cross-encoders over raw logits. Gao, Dai and Callan 2021 (localised contrastive estimation).
    """

    encoders: ClassVar[tuple[str, ...]] = ("cross_encoder",)  # the types it trains
    negatives: ClassVar[Negatives] = "own"  # a group holds the query's own documents and no others

    def __call__(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """Return the loss; a label above 0 marks a positive. ``teacher`` is not used."""
        mask = torch.ones_like(labels, dtype=torch.bool) if mask is None else mask
        return contrast(scores, labels, mask, weights)
