"""LambdaLoss: pairs weighted by how exchanging them would change nDCG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from sluice.encoders.foundation.build import checked
from sluice.training.batches.vector_batch import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.reduction import (
    Average,
    Group,
    averaged,
    group_of,
    logistic,
    ordered,
    ordered_pairs,
    pair_sums,
    ranks_by,
    refuse_idle,
    scale_for,
)
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
@checked("lambda_loss.")
class LambdaLoss(LossBase):
    """Sum over pairs with ``y_i > y_j`` of ``w_ij log(1 + exp(-(s_i - s_j)))``.

    ``weighting`` is w: ``delta_ndcg``, the change of nDCG@k if the two exchanged their present
    ranks (LambdaRank; 0 where both are beyond ``cutoff`` k); ``ndcg_loss2``, the bound with the
    discounts of the ranks' distance; or ``ndcg_loss2++``, ``mu`` times the latter plus the former.
    The last two leave out pairs wholly beyond k. ``gain`` of a label y is 2^y - 1 or y itself.
    ``average`` takes a query's ``sum``, or is over its pairs or those of the batch, ``scale``
    multiplies the scores; left out it is 20 for cosine and 1 for dot products.

    Ranks are those the scores give now, ties by column.
    """

    summary = "pairs weighted by how exchanging them would change nDCG"
    paper = "Wang et al. 2018 (LambdaLoss)"

    weighting: Literal["delta_ndcg", "ndcg_loss2", "ndcg_loss2++"] = "delta_ndcg"
    gain: Literal["exponential", "linear"] = "exponential"
    cutoff: Annotated[int | None, Ge(1), "Pairs beyond this place count nothing."] = None
    mu: Annotated[float, Gt(0), "The weight of NDCG-Loss2 in ndcg_loss2++."] = 10.0
    negatives: Negatives = "own"
    average: Average = "sum"
    scale: Annotated[float | None, Gt(0)] = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"

    def __post_init__(self) -> None:
        if self.weighting != "ndcg_loss2++":
            refuse_idle("lambda_loss", self, ["mu"], "it is for weighting: ndcg_loss2++; set that")

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        group = group_of(matrix.times(scale_for(self.scale, self.similarity)))
        grades = group.labels.clamp(min=0.0)
        gains = grades.exp2() - 1 if self.gain == "exponential" else grades
        weigh = self._weights(gains, ranks_by(group.scores, group.taking))
        sums = pair_sums(
            group.scores, logistic(lambda rows: weigh(rows) * ordered(group, group.labels, rows))
        )
        return averaged(sums, self._pairs(group), matrix.weights, self.average)

    def _weights(self, gains: Tensor, ranks: Tensor) -> Callable[[slice], Tensor]:
        def weigh(rows: slice) -> Tensor:
            gain, rank = gains[rows], ranks[rows]
            if self.weighting == "delta_ndcg":
                return delta_ndcg(gain, rank, self.cutoff)
            bound = _loss2(gain, rank, self.cutoff)
            if self.weighting == "ndcg_loss2":
                return bound
            return self.mu * bound + delta_ndcg(gain, rank, self.cutoff)

        return weigh

    def _pairs(self, group: Group) -> Tensor:
        """``[B]``: how many pairs have a document within the cut-off."""
        counts = ordered_pairs(group, group.labels)
        if self.cutoff is None:
            return counts
        beyond = ranks_by(group.scores, group.taking) > self.cutoff
        return counts - ordered_pairs(group._replace(taking=group.taking & beyond), group.labels)


def delta_ndcg(gains: Tensor, ranks: Tensor, cutoff: int | None = None) -> Tensor:
    """``[B, L, L]``: how far nDCG@cutoff moves when two documents exchange their ranks.

    ``gains`` ``[B, L]`` are of documents at ``ranks`` ``[B, L]``, from 1.
    """
    discount = 1.0 / (1.0 + ranks.to(gains.dtype)).log2()
    if cutoff is not None:
        discount = discount.masked_fill(ranks > cutoff, 0.0)
    share = gains / _ideal(gains, cutoff)
    return (share[:, :, None] - share[:, None, :]).abs() * (
        discount[:, :, None] - discount[:, None, :]
    ).abs()


def _loss2(gains: Tensor, ranks: Tensor, cutoff: int | None) -> Tensor:
    """``[B, L, L]``: ``|1/D(d) - 1/D(d + 1)|`` of the ranks' distance d, times the gains'."""
    apart = (ranks[:, :, None] - ranks[:, None, :]).abs().to(gains.dtype)
    bound = 1.0 / (1.0 + apart.clamp(min=1)).log2() - 1.0 / (2.0 + apart).log2()
    if cutoff is not None:
        near = ranks <= cutoff
        bound = bound * (near[:, :, None] | near[:, None, :])
    share = gains / _ideal(gains, cutoff)
    return bound * (share[:, :, None] - share[:, None, :]).abs()


def _ideal(gains: Tensor, cutoff: int | None) -> Tensor:
    """``[B, 1]``: the DCG of the best order, or 1 where no document has a gain."""
    best = gains.sort(dim=1, descending=True).values
    place = torch.arange(1, gains.shape[1] + 1, device=gains.device, dtype=gains.dtype)
    terms = best / (1.0 + place).log2()
    ideal = terms[:, :cutoff].sum(1, keepdim=True)
    return ideal.masked_fill(ideal <= 0, 1.0)
