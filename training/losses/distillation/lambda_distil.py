"""Listwise distillation: the teacher's order, in pairs weighted by the student's ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt
from torch import Tensor

from sluice.encoders.foundation.build import checked
from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.packed_cells import Average, group_of
from sluice.training.losses.math.pair_sums import Ranks, check_cut, lambda_pairs, positions_of
from sluice.training.losses.math.reduction import scale_for
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
@checked("lambda_distil.")
class LambdaDistil(LossBase):
    """Sum over pairs with ``T_i > T_j`` of ``|1/p_i - 1/p_j| log(1 + exp(-(s_i - s_j)))``.

    T are the teacher's scores, of which only the order counts, and p the ranks that the student's
    own scores give now (ties by column), or with ``ranks: columns`` the places in the group.
    ``metric_cut``, ``scale`` and ``average`` are as in ``adore``.
    """

    summary = "the teacher's order, weighted by the student's ranks"
    paper = "Zeng et al. 2022 (CL-DRD, arXiv 2204.13679)"

    needs_teacher: ClassVar[bool] = True
    negatives: ClassVar[Negatives] = "own"  # a teacher scores the query's own documents

    metric_cut: Annotated[int | None, "Places of the list that count; null: all."] = None
    ranks: Annotated[Ranks, "scores: the order of the scores now; columns: of the columns."] = (
        "scores"
    )
    average: Average = "sum"
    scale: Annotated[float | None, Gt(0)] = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"

    def __post_init__(self) -> None:
        check_cut("lambda_distil", self.metric_cut)

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        scale = scale_for(self.scale, self.similarity)
        group = group_of(matrix.times(scale), taught="lambda_distil")
        # In a matrix of all documents a group does not begin in the first column.
        first = group.columns[:, 0] if self.ranks == "columns" else None
        return lambda_pairs(
            group,
            group.teacher,
            positions_of(group, self.ranks, first),
            metric_cut=self.metric_cut,
            weights=matrix.weights,
            average=self.average,
        )
