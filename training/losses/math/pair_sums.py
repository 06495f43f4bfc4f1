"""Sums of a cost over pairs of documents of one query, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid

from sluice.training.losses.math.packed_cells import Group

CELLS = 1 << 20  # of [rows, L, L] at a time: 4 MB in float32

# (rows, s_i - s_j [b, L, L]) -> cost of each pair (i, j) and its derivative, 0 where it is none
Cost = Callable[[slice, Tensor], tuple[Tensor, Tensor]]


def pair_sums(scores: Tensor, cost: Cost) -> Tensor:
    """``[B]``: the sum over all (i, j) of a row of a cost of ``s_i - s_j``, scores ``[B, L]``.

    The gradient is worked out in the same pass over a few rows at a time, so memory beyond
    ``[B, L]`` does not grow with B. It cannot be differentiated again.
    """
    sums: Tensor = _PairSums.apply(scores, cost)  # type: ignore[no-untyped-call]
    return sums


def logistic(weights: Callable[[slice], Tensor]) -> Cost:
    """Return the cost ``w_ij log(1 + exp(-(s_i - s_j)))``; ``weights(rows)`` is ``[b, L, L]``."""

    def cost(rows: slice, difference: Tensor) -> tuple[Tensor, Tensor]:
        weight = weights(rows)
        return -weight * logsigmoid(difference), -weight * torch.sigmoid(-difference)

    return cost


def hinge(margins: Callable[[slice], Tensor], pairs: Callable[[slice], Tensor]) -> Cost:
    """Return the cost ``max(0, margin_ij - (s_i - s_j))`` of ``pairs(rows)`` ``[b, L, L]`` bool."""

    def cost(rows: slice, difference: Tensor) -> tuple[Tensor, Tensor]:
        gap = margins(rows) - difference
        short = pairs(rows) & (gap > 0)
        return gap.masked_fill(~short, 0.0), -short.to(gap.dtype)

    return cost


def ordered(group: Group, values: Tensor, rows: slice = slice(None)) -> Tensor:
    """``[b, L, L]``: both cells take part and ``values`` ``[B, L]`` put i strictly before j."""
    taking, value = group.taking[rows], values[rows]
    both = taking[:, :, None] & taking[:, None, :]
    return both & (value[:, :, None] > value[:, None, :])


def below(group: Group, values: Tensor) -> Tensor:
    """``[B, L]``: how many cells of the row have a strictly lower value."""
    low = values.masked_fill(~group.taking, torch.inf).sort(dim=1).values
    return torch.searchsorted(low, values.contiguous())


def ordered_pairs(group: Group, values: Tensor) -> Tensor:
    """``[B]``: how many pairs ``ordered`` finds in each row, without making them."""
    return (below(group, values) * group.taking).sum(1)


class _PairSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, cost: Cost) -> Tensor:
        rows, width = scores.shape
        step = max(1, CELLS // (width * width))
        sums, slopes = scores.new_zeros(rows), torch.zeros_like(scores)
        for start in range(0, rows, step):
            part = slice(start, start + step)
            values, slope = cost(part, scores[part, :, None] - scores[part, None, :])
            sums[part] = values.sum((1, 2))
            slopes[part] = slope.sum(2) - slope.sum(1)
        ctx.save_for_backward(slopes)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (slopes,) = ctx.saved_tensors
        return gradient[:, None] * slopes, None
