"""STAR: every positive against every negative of the batch, in pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt
from torch import Tensor
from torch.nn.functional import logsigmoid

from sluice.encoders.foundation.build import checked
from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.reduction import temperature_for, weighted_mean
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
@checked("star.")
class STAR(LossBase):
    """Mean over pairs (p, n) of ``log(1 + exp((s_n - s_p) / t))``.

    A query's pairs are its positives with the positives of other queries ("random" negatives) and
    with the hard negatives of any query ("static hard"), all under one common denominator; known
    positives are masked. The paper's scores are dot products without a temperature, which is what
    ``similarity: dot`` gives; for cosine t is 0.05. Weights count a query's pairs.
    """

    summary = "RankNet over static hard and random in-batch pairs, one denominator"
    paper = "Zhan et al. 2021 (STAR)"

    temperature: Annotated[float | None, Gt(0)] = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"
    negatives: Negatives = "all"

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        scores, labels, mask, weights, _ = matrix
        scaled = scores / temperature_for(self.temperature, self.similarity)
        rows, columns = (mask & (labels > 0)).nonzero(as_tuple=True)
        pairs = (mask & (labels <= 0))[rows]  # [P, N]
        gaps = (scaled[rows, columns][:, None] - scaled[rows]).masked_fill(~pairs, 0.0)
        return weighted_mean(-logsigmoid(gaps), pairs, None if weights is None else weights[rows])
