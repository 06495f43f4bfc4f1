"""A loss of your own: every positive should beat every negative of its query by a margin.

In YAML: ``loss: {type: own_loss:TripletMargin, margin: 0.3}`` (the folder is on PYTHONPATH).
"""

from dataclasses import dataclass

from torch import Tensor

from sluice.retrieval.testing import check_loss
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.reduction import weighted_mean
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True)
class TripletMargin(LossBase):
    """The mean of ``max(0, margin - s_p + s_n)`` over all pairs; the fields are the YAML keys."""

    margin: float = 0.2
    # LossBase lists all that a loss may ask for. This one wants cosines whatever the encoder says.
    similarity = "cosine"

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        # scores, labels (above 0 for positives), mask (the cells that count) and teacher (a
        # teacher's scores, NaN where there are none) are [B, N], queries against the documents of
        # the batch; weights, of the queries, are [B] or None.
        scores, labels, mask, weights, _ = matrix
        rows, columns = (mask & (labels > 0)).nonzero(as_tuple=True)  # P positives
        negatives = (mask & (labels <= 0))[rows]  # [P, N]
        gaps = scores[rows] - scores[rows, columns][:, None] + self.margin
        return weighted_mean(
            gaps.clamp(min=0), negatives, None if weights is None else weights[rows]
        )


# Scalar, gradient, mask, weights, order, extreme scores: raises BrokenRule, or all is well.
check_loss(TripletMargin)
