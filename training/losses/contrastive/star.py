"""STAR: every positive against every negative of the batch, in pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn.functional import logsigmoid

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.reduction import counted_cells, weighted_mean, widened
from sluice.training.losses.math.scale import temperature_for


@dataclass(frozen=True, slots=True)
class STAR(LossBase):
    """Mean over pairs (p, n) of ``log(1 + exp((s_n - s_p) / t))``.

    A query's pairs are its positives with the positives of other queries ("random" negatives) and
    with the hard negatives of any query ("static hard"), all under one common denominator; known
    positives are masked. The paper's scores are dot products without a temperature, which is what
    ``similarity: dot`` gives; for cosine t is 0.05. Weights count a query's pairs.

    Zhan et al. 2021 (Optimizing Dense Retrieval Model Training with Hard Negatives).
    """

    temperature: float | None = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"
    negatives: Negatives = "all"

    def __post_init__(self) -> None:
        if self.temperature is not None and not self.temperature > 0:
            raise ConfigError(f"star.temperature: {self.temperature!r}, expected above 0")

    def __call__(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """Return the loss; a label above 0 marks a positive. ``teacher`` is not used."""
        mask = counted_cells(labels, mask)
        scaled = widened(scores) / temperature_for(self.temperature, self.similarity)
        rows, columns = (mask & (labels > 0)).nonzero(as_tuple=True)
        pairs = (mask & (labels <= 0))[rows]  # [P, N]
        gaps = (scaled[rows, columns][:, None] - scaled[rows]).masked_fill(~pairs, 0.0)
        return weighted_mean(-logsigmoid(gaps), pairs, None if weights is None else weights[rows])
