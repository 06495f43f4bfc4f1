"""The listwise hinge: score gaps should grow with the distance in an ordered list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt
from torch import Tensor

from sluice.encoders.foundation.build import checked
from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.packed_cells import Average, averaged, group_of
from sluice.training.losses.math.pair_sums import below, hinge, ordered, ordered_pairs, pair_sums
from sluice.training.losses.math.reduction import scale_for
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
@checked("listwise_hinge.")
class ListwiseHinge(LossBase):
    """Sum over i before j of ``max(0, s_j - s_i + (r_j - r_i) margin)``.

    r is a document's place in the list: the number of documents that go strictly before it, so
    those that tie share a place and form no pair. ``order``: the ``teacher``'s scores, the
    ``labels``, or the ``columns``, for groups that are ordered lists. ``average`` takes a query's
    ``sum``, or is over its pairs or those of the batch. ``scale`` multiplies the scores; left out
    it is 20 for cosine and 1 for dot products.
    """

    summary = "margins that grow with the distance of ranks"
    paper = "Liu et al. 2022 (BRIO, arXiv 2203.16804)"

    negatives: ClassVar[Negatives] = "own"  # a list holds the query's own documents

    order: Literal["teacher", "labels", "columns"] = "teacher"
    margin: Annotated[float, Gt(0), "The difference below which a pair counts."] = 0.01
    average: Average = "sum"
    scale: Annotated[float | None, Gt(0)] = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"

    @property
    def needs_teacher(self) -> bool:
        """Whether a teacher gives the order."""
        return self.order == "teacher"

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        scale = scale_for(self.scale, self.similarity)
        group = group_of(
            matrix.times(scale), taught="listwise_hinge" if self.needs_teacher else None
        )
        order = {
            "teacher": group.teacher,
            "labels": group.labels,
            "columns": -group.columns.to(group.scores.dtype),
        }[self.order]
        places = below(group, -order).to(group.scores.dtype)

        def margins(rows: slice) -> Tensor:
            return (places[rows, None, :] - places[rows, :, None]) * self.margin

        cost = hinge(margins, lambda rows: ordered(group, order, rows))
        sums = pair_sums(group.scores, cost)
        return averaged(sums, ordered_pairs(group, order), matrix.weights, self.average)
