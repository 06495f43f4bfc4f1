"""Binary cross-entropy: each pair of query and document judged alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase


@dataclass(frozen=True, slots=True)
class BCE(LossBase):
    """Mean over pairs of ``-y log sigmoid(s) - (1 - y) log(1 - sigmoid(s))``.

    Labels lie in [0, 1]. ``positive_weight`` multiplies the first term: with g negatives to a
    positive, g balances the two.
    """

    encoders: ClassVar[tuple[str, ...]] = ("cross_encoder",)  # the types it trains
    negatives: ClassVar[Negatives] = "own"  # only the query's own documents are judged

    positive_weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.positive_weight > 0:
            raise ConfigError(f"bce.positive_weight: {self.positive_weight!r}, expected above 0")

    def __call__(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """Return the mean over the cells that take part. ``teacher`` is not used."""
        cells = binary_cross_entropy_with_logits(
            scores,
            labels.to(scores.dtype),
            reduction="none",
            pos_weight=scores.new_tensor(self.positive_weight),
        )
        share = torch.ones_like(cells) if mask is None else mask.to(cells.dtype)
        if weights is not None:
            share = share * weights[:, None]
        return (cells * share).sum() / share.sum().clamp(min=torch.finfo(cells.dtype).tiny)
