"""The cells of a score matrix that count, packed to the left; means and divergences of rows."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sluice.encoders.foundation.errors import DataError
from sluice.training.protocol import ScoreMatrix

Average = Literal["queries", "pairs", "sum"]


class Group(NamedTuple):
    """The cells that take part, each row's in their order of columns, ``[B, L]`` throughout.

    ``columns`` are those of the full matrix. Where ``taking`` is False the row has ended:
    scores, labels and teacher are 0 there and pass no gradient on.
    """

    scores: Tensor
    labels: Tensor
    teacher: Tensor
    taking: Tensor
    columns: Tensor


def group_of(matrix: ScoreMatrix, *, taught: str | None = None) -> Group:
    """Pack ``[B, N]`` to the width of the row with the most cells.

    For the loss of the name ``taught`` only the cells that the teacher scored (not NaN) take part;
    raises ``DataError`` for a batch without a teacher.
    """
    scores, labels, taking, _, _ = matrix
    teacher = None if taught is None else scored(taught, matrix.teacher)
    if teacher is not None:
        taking = taking & ~teacher.isnan()
    width = max(1, int(taking.sum(1).max()))
    columns = taking.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :width]
    present = taking.gather(1, columns)

    def packed(values: Tensor) -> Tensor:
        return values.to(scores.dtype).gather(1, columns).masked_fill(~present, 0.0)

    judged = torch.zeros_like(scores) if teacher is None else teacher
    return Group(packed(scores), packed(labels), packed(judged), present, columns)


def scored(name: str, teacher: Tensor | None) -> Tensor:
    """Return the teacher's scores; raises ``DataError`` for a batch that brought none."""
    if teacher is None:
        raise DataError(
            f"{name}: the batch has no teacher's scores; make them with `sluice teach distil` "
            "and name the file under `teacher:`"
        )
    return teacher


def averaged(sums: Tensor, counts: Tensor, weights: Tensor | None, average: Average) -> Tensor:
    """Return the mean of rows from their sums ``[B]`` over ``counts`` ``[B]`` terms.

    ``queries``: each row its own mean, then the mean over rows; ``pairs``: over the terms of all
    rows at once; ``sum``: each row its sum, then the mean over rows. Rows without terms do not
    count, ``weights`` ``[B]`` weigh the rows.
    """
    counts = counts.to(sums.dtype)
    share = counts if average == "pairs" else (counts > 0).to(sums.dtype)
    if weights is not None:
        share = share * weights.to(sums.dtype)
    rows = sums if average == "sum" else sums / counts.clamp(min=1)
    return (rows * share).sum() / share.sum().clamp(min=torch.finfo(sums.dtype).tiny)


def ranks_by(scores: Tensor, taking: Tensor) -> Tensor:
    """``[B, L]``: the place of each cell by descending score, from 1; ties by column."""
    order = scores.detach().masked_fill(~taking, -torch.inf)
    return order.argsort(dim=1, descending=True, stable=True).argsort(dim=1) + 1


def log_shares(scores: Tensor, taking: Tensor) -> Tensor:
    """``[B, L]``: the log of the softmax over the cells that take part, 0 at the others."""
    # A finite floor: the gradient of logsumexp over nothing but -inf is nan.
    filled = scores.masked_fill(~taking, torch.finfo(scores.dtype).min / 2)
    return (filled - filled.logsumexp(1, keepdim=True)).masked_fill(~taking, 0.0)


def divergence(of: Tensor, from_: Tensor, taking: Tensor) -> Tensor:
    """``[B]``: ``sum_j p_j (log p_j - log q_j)`` for p in ``of`` and q in ``from_``, as logs."""
    return (of.exp() * (of - from_)).masked_fill(~taking, 0.0).sum(1)


def choices(taking: Tensor) -> Tensor:
    """``[B]``: 1 for a row with two cells or more; over a single one nothing can be learnt."""
    return (taking.sum(1) > 1).long()
