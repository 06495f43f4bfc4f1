"""Sums of a cost over pairs of documents of one query, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.losses.math.packed_cells import Average, Group, averaged, ranks_by

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


Ranks = Literal["columns", "scores"]


def lambda_pairs(
    group: Group,
    order: Tensor,
    positions: Tensor,
    *,
    metric_cut: int | None,
    weights: Tensor | None,
    average: Average,
) -> Tensor:
    """Return the average of ``|1/p_i - 1/p_j| log(1 + exp(-(s_i - s_j)))`` where i goes before j.

    ``order`` ``[B, L]`` says what goes before what, ``positions`` ``[B, L]`` are p, from 1.
    Reciprocals beyond ``metric_cut`` are 0; pairs of weight 0 count in the average all the same.
    """
    reciprocal = 1.0 / positions.to(group.scores.dtype)
    if metric_cut is not None:
        reciprocal = reciprocal.masked_fill(positions > metric_cut, 0.0)

    def exchanged(rows: slice) -> Tensor:
        part = reciprocal[rows]
        return (part[:, :, None] - part[:, None, :]).abs() * ordered(group, order, rows)

    sums = pair_sums(group.scores, logistic(exchanged))
    return averaged(sums, ordered_pairs(group, order), weights, average)


def positions_of(group: Group, ranks: Ranks, first: Tensor | None = None) -> Tensor:
    """``[B, L]``: positions from 1, in the given list or by the student's current scores.

    ``first`` ``[B]`` is the column where each row's list begins, 0 unless given.
    """
    if ranks == "scores":
        return ranks_by(group.scores, group.taking)
    start = torch.zeros_like(group.columns[:, 0]) if first is None else first
    return (group.columns - start[:, None]).clamp(min=0) + 1


def check_cut(name: str, metric_cut: int | None) -> None:
    """Raise ``ConfigError`` for a cut below 1."""
    if metric_cut is not None and metric_cut < 1:
        raise ConfigError(f"{name}.metric_cut: {metric_cut!r}, expected 1 or more, or nothing")
