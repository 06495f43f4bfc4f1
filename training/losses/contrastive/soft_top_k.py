"""Soft top-k loss: positives shall be among the k best, in whatever order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.reduction import mean_by_row, weighted_mean
from sluice.training.losses.math.scale import check_positive, temperature_for
from sluice.training.losses.math.soft_selection import soft_top_k
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
class SoftTopK(LossBase):
    """``mean_i -1/|P_i| sum_{p in P_i} log sigmoid(alpha (s_ip / t + c_i))``.

    c is such that the sigmoids of a row sum to ``k`` (``positives``: to the number of the row's
    positives): a positive already well inside the k best is left alone. A row with k documents or
    fewer contributes 0. ``temperature`` t is, left out, 0.05 for cosine and 1 for what is not
    bounded.
    """

    summary = "positives above a threshold that k documents pass"
    paper = "Gupta et al. 2024 (DEXML)"

    k: Literal["positives"] | int = 5
    alpha: float = 2.0
    temperature: float | None = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"
    negatives: Negatives = "all"

    def __post_init__(self) -> None:
        if isinstance(self.k, int) and self.k < 1:
            raise ConfigError(f"soft_top_k.k: {self.k!r}, expected 1 or above, or 'positives'")
        check_positive("soft_top_k", alpha=self.alpha, temperature=self.temperature)

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        mask = matrix.mask
        positive = mask & (matrix.labels > 0)
        scaled = matrix.scores / temperature_for(self.temperature, self.similarity)
        scaled = scaled.masked_fill(~mask, 0.0)
        # A row without positives has no loss; any k will do for it.
        size = positive.sum(1).clamp(min=1)
        if self.k != "positives":
            size = size.new_full(size.shape, self.k)
        chosen = soft_top_k(scaled, mask, size, self.alpha)
        rows = positive.nonzero(as_tuple=True)[0]
        means, present = mean_by_row(-chosen[positive], rows, len(matrix.labels))
        return weighted_mean(means, present, matrix.weights)
