"""Pairwise softmax losses: InfoNCE with a tighter, noise-robust surrogate for the exponential."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt
from torch import Tensor
from torch.nn.functional import logsigmoid

from sluice.encoders.foundation.build import checked
from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.reduction import (
    floor_of,
    mean_by_row,
    weighted_mean,
)
from sluice.training.protocol import ScoreMatrix

LOWEST_GAP = -1 + 1e-4  # relu is log(0) at -1, atan the log of a negative number below -1.557


@dataclass(frozen=True, slots=True)
@checked("psl.")
class PSL(LossBase):
    """``mean_i log sum_n exp(phi(d_in) / t)`` over gaps ``d_in = (s_in - s_i+) / scale``.

    ``activation`` is phi: ``tanh`` is log(tanh(d) + 1), ``relu`` log(relu(d + 1)) and ``atan``
    log(atan(d) + 1); with phi(d) = d this is InfoNCE without the positive in the sum. On gaps in
    [-1, 1] each lies between the indicator of a mistake and the exponential; cosine scores and a
    ``scale`` of 2 keep them there. Below -1, where relu and atan are not defined, their gaps are
    held just above it and give no gradient. ``temperature`` is t.

    ``method: rows`` is the mean over queries above, ``pairs`` the log of the mean of
    ``exp(phi / t)`` over all pairs of the batch. Several positives of a query are averaged; a query
    without negatives contributes nothing.
    """

    summary = "softmax loss with tanh, relu or atan in place of exp"
    paper = "Yang et al. 2024 (PSL)"

    activation: Literal["tanh", "relu", "atan"] = "tanh"
    method: Literal["rows", "pairs"] = "rows"
    temperature: Annotated[float, Gt(0), "Divides the scores."] = 0.05
    scale: Annotated[float, Gt(0), "Multiplies the scores."] = 2.0
    similarity: Literal["auto", "cosine", "dot"] = "cosine"
    negatives: Negatives = "all"

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        scores, labels, mask, weights, _ = matrix
        rows, columns = (mask & (labels > 0)).nonzero(as_tuple=True)
        pairs = (mask & (labels <= 0))[rows]  # [P, N]
        gaps = (scores[rows] - scores[rows, columns][:, None]).masked_fill(~pairs, 0.0) / self.scale
        logs = (surrogate(gaps, self.activation) / self.temperature).masked_fill(
            ~pairs, floor_of(scores)
        )
        some = pairs.any(1)
        if self.method == "rows":
            each = logs.logsumexp(1).masked_fill(~some, 0.0)
            means, present = mean_by_row(each[some], rows[some], len(labels))
            return weighted_mean(means, present, weights)
        return _log_mean(logs, pairs, None if weights is None else weights[rows])


def surrogate(gaps: Tensor, activation: Literal["tanh", "relu", "atan"]) -> Tensor:
    """Return phi of the gaps: the logarithm of the surrogate of their exponential."""
    if activation == "tanh":
        return math.log(2) + logsigmoid(2 * gaps)  # log(tanh(d) + 1), without cancellation
    clamped = gaps.clamp(min=LOWEST_GAP)
    return (clamped if activation == "relu" else clamped.atan()).log1p()


def _log_mean(logs: Tensor, pairs: Tensor, weights: Tensor | None) -> Tensor:
    """Return the log of the weighted mean of ``exp(logs)`` over ``pairs``; 0 without any."""
    share = pairs.to(logs.dtype)
    if weights is not None:
        share = share * weights.to(logs.dtype)[:, None]
    used = share > 0
    if not used.any():
        return logs[used].sum()
    return (logs[used] + share[used].log()).logsumexp(0) - share.sum().log()
