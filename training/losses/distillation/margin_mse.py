"""MarginMSE: the student's score differences should equal the teacher's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt
from torch import Tensor

from sluice.encoders.foundation.build import checked
from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.packed_cells import Average, averaged, group_of
from sluice.training.losses.math.reduction import scale_for
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
@checked("margin_mse.")
class MarginMSE(LossBase):
    """Mean over pairs (i, j) of a query of ``[(s_i - s_j) - (T_i - T_j)]^2``.

    ``pairs``: every positive against every negative (``positives``), or all ordered pairs of
    documents that the teacher scored (``all``), as SPLADE's trainer has it. ``average`` is over
    each query's pairs, over the ``pairs`` of the batch, or takes a query's ``sum``. ``scale``
    multiplies the student's scores: left out it is 20 for cosine and 1 for dot products, whose size
    is the teacher's to set.

    A query without a pair contributes nothing.
    """

    summary = "differences of scores like the teacher's; `pairs: positives`, `all`"
    paper = "Hofstätter et al. 2020 (arXiv 2010.02666)"

    needs_teacher: ClassVar[bool] = True
    negatives: ClassVar[Negatives] = "own"  # a teacher scores the query's own documents

    pairs: Literal["positives", "all"] = "positives"
    average: Average = "queries"
    scale: Annotated[float | None, Gt(0)] = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        scale = scale_for(self.scale, self.similarity)
        group = group_of(matrix.times(scale), taught="margin_mse")
        gap = group.scores - group.teacher
        if self.pairs == "all":
            count, _, spread = _spread(gap, group.taking)
            # sum_ij (g_i - g_j)^2 = 2 n sum_i (g_i - mean)^2: no pairs, and nothing cancels
            return averaged(2 * count * spread, count * (count - 1), matrix.weights, self.average)
        here, mean, spread = _spread(gap, group.taking & (group.labels > 0))
        there, other, rest = _spread(gap, group.taking & (group.labels <= 0))
        sums = there * spread + here * rest + here * there * (mean - other) ** 2
        return averaged(sums, here * there, matrix.weights, self.average)


def _spread(values: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return each row's count, mean and sum of squared distances from the mean, ``[B]`` each."""
    count = chosen.sum(1).to(values.dtype)
    mean = values.masked_fill(~chosen, 0.0).sum(1) / count.clamp(min=1)
    distance = (values - mean[:, None]).masked_fill(~chosen, 0.0)
    return count, mean, (distance**2).sum(1)
