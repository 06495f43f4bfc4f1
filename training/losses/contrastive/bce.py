"""Binary cross-entropy: each pair of query and document judged alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Gt
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from sluice.encoders.foundation.build import checked
from sluice.encoders.tuning.learning import Form
from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.reduction import weighted_mean
from sluice.training.losses.math.soft_labels import SoftTarget, check_target, soft_labels
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
@checked("bce.")
class BCE(LossBase):
    """Mean over pairs of ``-y log sigmoid(s) - (1 - y) log(1 - sigmoid(s))``.

    y are the ``labels``, in [0, 1], or with ``target`` a teacher's soft labels for the documents it
    scored: ``logits`` the sigmoids of its scores over ``teacher_temperature`` (left out, 1),
    ``probabilities`` its scores as they are. ``temperature`` divides s. ``positive_weight``
    multiplies the first term: with g negatives to a positive, g balances the two.
    """

    summary = "cross-entropy of each pair alone, against labels or a teacher's (`target: logits`)"
    paper = "Nogueira and Cho 2019 (arXiv 1901.04085)"

    forms: ClassVar[tuple[Form, ...]] = ("scores",)  # what it trains
    negatives: ClassVar[Negatives] = "own"  # only the query's own documents are judged

    positive_weight: Annotated[float, Gt(0)] = 1.0
    temperature: Annotated[float, Gt(0), "Divides the scores."] = 1.0
    target: Annotated[
        SoftTarget, "Labels, or a teacher's: sigmoids of its logits, or probabilities."
    ] = "labels"
    teacher_temperature: Annotated[float | None, "Divides the teacher's logits; left out, 1."] = (
        None
    )

    def __post_init__(self) -> None:
        check_target("bce", self.target, self.teacher_temperature)

    @property
    def needs_teacher(self) -> bool:
        """Whether a teacher gives the labels."""
        return self.target != "labels"

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        cells = binary_cross_entropy_with_logits(
            matrix.scores / self.temperature,
            soft_labels("bce", matrix, self.target, self.teacher_temperature),
            reduction="none",
            pos_weight=matrix.scores.new_tensor(self.positive_weight),
        )
        return weighted_mean(cells, matrix.mask, matrix.weights)
