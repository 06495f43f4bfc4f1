"""ListMLE: the likelihood of the right order, position by position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from sluice.encoders.foundation.build import checked
from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.packed_cells import averaged, group_of
from sluice.training.losses.math.reduction import temperature_for
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
@checked("list_mle.")
class ListMLE(LossBase):
    """``-mean_i sum_r w_r log[exp(s_r) / (exp(s_r) + sum_(j after r) exp(s_j))]``, best first.

    ``order``: the ``labels``, the ``teacher``'s scores, or the ``columns``, for groups that are
    ordered lists. Documents that tie go in any order: each is held against those after all of its
    equals, so the last of them add nothing, and one positive with its negatives is
    ``localized_softmax``. ``position_aware`` (p-ListMLE, Lan et al. 2014) sets
    ``w_r = 2^(n - r) - 1`` over their sum, equals sharing the mean of their places; else w is 1.
    ``temperature`` divides the scores: left out it is 0.05 for cosine and 1 for dot products.

    A query whose documents all tie contributes nothing.
    """

    summary = "likelihood of the right order; `position_aware` weighs the top"
    paper = "Xia et al. 2008; Lan et al. 2014 (p-ListMLE)"

    order: Literal["labels", "teacher", "columns"] = "labels"
    position_aware: bool = False
    negatives: Negatives = "own"
    temperature: Annotated[float | None, Gt(0)] = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"

    @property
    def needs_teacher(self) -> bool:
        """Whether a teacher gives the order."""
        return self.order == "teacher"

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        temperature = temperature_for(self.temperature, self.similarity)
        group = group_of(
            matrix.over(temperature), taught="list_mle" if self.needs_teacher else None
        )
        order = {
            "labels": group.labels,
            "teacher": group.teacher,
            "columns": -group.columns.to(group.scores.dtype),
        }[self.order]
        descent, sequence = (-order).masked_fill(~group.taking, torch.inf).sort(dim=1, stable=True)
        sizes = group.taking.sum(1, keepdim=True)
        begins = torch.searchsorted(descent, descent)
        ends = torch.searchsorted(descent, descent, right=True)
        followed = ends < sizes  # by a document that does not tie
        # A finite floor: inf - inf has no gradient.
        floor = torch.finfo(group.scores.dtype).min / 2
        best_first = group.scores.masked_fill(~group.taking, floor).gather(1, sequence)
        suffix = best_first.flip(1).logcumsumexp(1).flip(1)
        after = suffix.gather(1, ends.clamp(max=suffix.shape[1] - 1))
        lead = (best_first - after).masked_fill(~followed, 0.0)
        terms = -logsigmoid(lead).masked_fill(~followed, 0.0)
        if self.position_aware:
            terms = terms * _place_weights(begins, ends, sizes, terms)
        return averaged(terms.sum(1), followed.any(1).long(), matrix.weights, "sum")


def _place_weights(begins: Tensor, ends: Tensor, sizes: Tensor, like: Tensor) -> Tensor:
    """``[B, L]``: ``2^(n - r) - 1`` over its sum, as the mean of the places from begin to end."""
    places = torch.arange(1, like.shape[1] + 1, device=like.device)
    # Over 2^n, so that long lists do not overflow.
    weights = torch.exp2(-places.to(like.dtype)) - torch.exp2(-sizes.to(like.dtype))
    weights = weights.clamp(min=0.0)
    sums = pad(weights.cumsum(1), (1, 0))
    means = (sums.gather(1, ends) - sums.gather(1, begins)) / (ends - begins).clamp(min=1)
    return means / weights.sum(1, keepdim=True).clamp(min=torch.finfo(like.dtype).tiny)
