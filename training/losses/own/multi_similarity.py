"""The multi-similarity loss, and its mining of the pairs of a batch that say something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt
from torch import Tensor, zeros_like
from torch.nn.functional import softplus

from sluice.encoders.foundation.build import checked
from sluice.encoders.table import Learnt as Form
from sluice.training.batches.vector_batch import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.reduction import floor_of, weighted_mean
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
@checked("multi_similarity.")
class MultiSimilarity(LossBase):
    """``log(1 + sum_p e^(-alpha (s_p - base))) / alpha + log(1 + sum_n e^(beta (s_n - base))) / beta``.

    The mean over queries, p and n running over a query's positives and negatives that mining
    leaves: a negative counts if it is above the lowest positive less ``epsilon``, a positive if it
    is below the highest negative plus ``epsilon`` (``mined``). ``epsilon: null`` takes all.
    """  # noqa: E501 (a formula)

    summary = "positives above and negatives below a similarity, of pairs that mining leaves"
    paper = "Wang et al. 2019 (Multi-Similarity Loss, arXiv 1904.06627), eq. 7 to 10"

    forms: ClassVar[tuple[Form, ...]] = ("dense",)  # what it trains: cosines lie about ``base``

    alpha: Annotated[float, Gt(0), "Steepness of the positives."] = 2.0
    beta: Annotated[float, Gt(0), "Steepness of the negatives."] = 50.0
    base: Annotated[float, "The similarity that divides them."] = 0.5
    epsilon: Annotated[float | None, Ge(0), "The margin of mining; null: no mining."] = 0.1
    similarity: Literal["auto", "cosine", "dot"] = "cosine"
    negatives: Negatives = "all"

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        scores, labels, mask, weights, _ = matrix
        taking = mask if self.epsilon is None else mined(scores, labels, mask, self.epsilon)
        parts = zeros_like(scores[:, 0])
        for side, slope in ((labels > 0, -self.alpha), (labels <= 0, self.beta)):
            logs = (slope * (scores - self.base)).masked_fill(~(taking & side), floor_of(scores))
            parts = parts + softplus(logs.logsumexp(1)) / abs(slope)
        known = (mask & (labels > 0)).any(1) & (mask & (labels <= 0)).any(1)
        return weighted_mean(parts, known, weights)


def mined(scores: Tensor, labels: Tensor, mask: Tensor, epsilon: float) -> Tensor:
    """Return the cells ``[B, N]`` of ``mask`` that say something (eq. 7 and 8).

    Negatives with ``s > min over positives - epsilon``, and positives with
    ``s < max over negatives + epsilon``, of their row; none of a row that lacks either.
    """
    positive, negative = mask & (labels > 0), mask & (labels <= 0)
    lowest = scores.masked_fill(~positive, float("inf")).amin(1, keepdim=True)
    highest = scores.masked_fill(~negative, float("-inf")).amax(1, keepdim=True)
    return (positive & (scores < highest + epsilon)) | (negative & (scores > lowest - epsilon))
