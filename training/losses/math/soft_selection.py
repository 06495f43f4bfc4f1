"""Soft top-k: how likely each score of a row is among its k highest, differentiably."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


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
        kept = scores[rows]
        found = threshold(kept, mask[rows], k.to(scores.dtype)[rows], alpha)
        shifted[rows] = alpha * (kept + found[:, None])
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
