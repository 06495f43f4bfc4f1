"""Binary cross-entropy: each pair of query and document judged alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.reduction import weighted_mean
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
class BCE(LossBase):
    """Mean over pairs of ``-y log sigmoid(s) - (1 - y) log(1 - sigmoid(s))``.

    Labels lie in [0, 1]. ``positive_weight`` multiplies the first term: with g negatives to a
    positive, g balances the two.
    """

    summary = "cross-entropy of each pair alone"
    paper = "Nogueira and Cho 2019 (arXiv 1901.04085)"

    encoders: ClassVar[tuple[str, ...]] = ("cross_encoder",)  # the types it trains
    negatives: ClassVar[Negatives] = "own"  # only the query's own documents are judged

    positive_weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.positive_weight > 0:
            raise ConfigError(f"bce.positive_weight: {self.positive_weight!r}, expected above 0")

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        cells = binary_cross_entropy_with_logits(
            matrix.scores,
            matrix.labels.to(matrix.scores.dtype),
            reduction="none",
            pos_weight=matrix.scores.new_tensor(self.positive_weight),
        )
        return weighted_mean(cells, matrix.mask, matrix.weights)
