"""RankNet: of each ordered pair the first document should score higher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt
from torch import Tensor

from sluice.encoders.foundation.build import checked
from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.packed_cells import Average, averaged, group_of, ranks_by
from sluice.training.losses.math.pair_sums import logistic, ordered, ordered_pairs, pair_sums
from sluice.training.losses.math.reduction import scale_for
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
@checked("rank_net.")
class RankNet(LossBase):
    """Mean over pairs of which i goes before j of ``log(1 + exp(-(s_i - s_j)))``.

    ``order``: the ``labels`` (positives before negatives, higher grades before lower), or the
    ``teacher``'s scores. ``cutoff`` k leaves pairs out of which neither is among the k that score
    highest now. ``average`` is over each query's pairs, over the ``pairs`` of the batch, or takes a
    query's ``sum``. ``scale`` multiplies the scores; left out it is 20 for cosine and 1 for dot
    products. ``negatives`` says what a query is held against, as in ``info_nce``.

    Documents with equal labels, or equal teacher scores, form no pair.
    """

    summary = "logistic loss of pairs in the wrong order"
    paper = "Burges et al. 2005"

    order: Literal["labels", "teacher"] = "labels"
    negatives: Negatives = "own"
    cutoff: Annotated[int | None, Ge(1)] = None
    average: Average = "queries"
    scale: Annotated[float | None, Gt(0)] = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"

    @property
    def needs_teacher(self) -> bool:
        """Whether a teacher gives the order."""
        return self.order == "teacher"

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        taught = "rank_net" if self.needs_teacher else None
        group = group_of(matrix.times(scale_for(self.scale, self.similarity)), taught=taught)
        order = group.teacher if self.needs_teacher else group.labels
        high = group.taking
        counts = ordered_pairs(group, order)
        if self.cutoff is not None:
            high = ranks_by(group.scores, group.taking) <= self.cutoff
            low = group._replace(taking=group.taking & ~high)
            counts = counts - ordered_pairs(low, order)

        def pairs(rows: slice) -> Tensor:
            near = high[rows, :, None] | high[rows, None, :]
            return (ordered(group, order, rows) & near).to(group.scores.dtype)

        sums = pair_sums(group.scores, logistic(pairs))
        return averaged(sums, counts, matrix.weights, self.average)
