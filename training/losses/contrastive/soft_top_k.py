"""Soft top-k loss: positives shall be among the k best, in whatever order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt
from torch import Tensor
from torch.nn.functional import logsigmoid

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.reduction import (
    mean_by_row,
    temperature_for,
    weighted_mean,
)
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
@checked("soft_top_k.")
class SoftTopK(LossBase):
    """``mean_i -1/|P_i| sum_{p in P_i} log sigmoid(alpha (s_ip / t + c_i))``.

    c is such that the sigmoids of a row sum to ``k`` (``positives``: to the number of the row's
    positives): a positive already well inside the k best is left alone. A row with k documents or
    fewer contributes 0. ``temperature`` t is, left out, 0.05 for cosine and 1 for what is not
    bounded.
    """

    summary = "positives above a threshold that k documents pass"
    paper = "Gupta et al. 2024 (DEXML)"

    k: Annotated[
        Literal["positives"] | int,
        "Documents of a row that count as retrieved, or positives: as many as it has.",
    ] = 5
    alpha: Annotated[float, Gt(0), "The steepness of the soft top k."] = 2.0
    temperature: Annotated[float | None, Gt(0)] = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"
    negatives: Negatives = "all"

    def __post_init__(self) -> None:
        if isinstance(self.k, int) and self.k < 1:
            raise ConfigError(f"soft_top_k.k: {self.k!r}, expected 1 or above, or 'positives'")

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


def soft_top_k(scores: Tensor, mask: Tensor, k: Tensor, alpha: float) -> Tensor:
    """Return ``[B, N]`` ``log sigmoid(alpha (s_ij + t_i))`` where ``sum_j sigmoid(...) = k_i``.

    The sum runs over the cells of ``mask``; others are 0, as is all of a row that has no more than
    k of them (everything is selected). ``scores`` must be finite. The threshold t is found by
    bisection and its gradient by the implicit function theorem: with ``u = g alpha (1 - sigma)``
    and ``v = sigma (1 - sigma)`` it is ``u - v sum(u) / sum(v)``. Gupta et al. 2024 (DEXML).
    """
    value: Tensor = _SoftTopK.apply(scores, mask, k, alpha)  # type: ignore[no-untyped-call]
    return value


def threshold(scores: Tensor, mask: Tensor, k: Tensor, alpha: float) -> Tensor:
    """Return ``[B]``, t with ``sum_j sigmoid(alpha (s_ij + t)) = k`` over the cells of ``mask``.

    Every row must have more cells than k.
    """
    share = k / mask.sum(1)
    offset = (share / (1 - share)).log() / alpha
    limit = torch.finfo(scores.dtype).max
    # With t below no cell exceeds the share that k is of the row, with t above none is less.
    low = offset - scores.masked_fill(~mask, -limit).amax(1)
    high = offset - scores.masked_fill(~mask, limit).amin(1)
    for _ in range(64 if scores.dtype == torch.float64 else 32):
        middle = (low + high) / 2
        chosen = (alpha * (scores + middle[:, None])).sigmoid() * mask
        few = chosen.sum(1) < k
        low, high = torch.where(few, middle, low), torch.where(few, high, middle)
    return (low + high) / 2


class _SoftTopK(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor, k: Tensor, alpha: float) -> Tensor:
        rows = mask.sum(1) > k
        mask = mask & rows[:, None]
        shifted = torch.zeros_like(scores)
        large = scores[rows]
        shift = threshold(large, mask[rows], k.to(scores.dtype)[rows], alpha)
        shifted[rows] = alpha * (large + shift[:, None])
        ctx.save_for_backward(shifted, mask)
        ctx.alpha = alpha
        return logsigmoid(shifted) * mask

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        shifted, mask = ctx.saved_tensors
        direct = gradients[0] * mask * ctx.alpha * (-shifted).sigmoid()
        # v / sum(v) as a softmax: it stays defined where every sigmoid is 0 or 1 in floats.
        spread = (logsigmoid(shifted) + logsigmoid(-shifted)).masked_fill(
            ~mask, torch.finfo(shifted.dtype).min / 2
        )
        moved = spread.softmax(1) * direct.sum(1, keepdim=True)
        return (direct - moved) * mask, None, None, None
