"""Pairs weighed by what exchanging them does to the reciprocal rank: ADORE and its distillation."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.losses.math.packed_cells import Average, Group, averaged, ranks_by
from sluice.training.losses.math.pair_sums import logistic, ordered, ordered_pairs, pair_sums

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
    """``[B, L]``: positions from 1, in the list as it stands or by the student's scores now.

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
