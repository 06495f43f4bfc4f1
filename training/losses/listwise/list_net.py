"""ListNet: cross-entropy between the softmax of the grades and that of the scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Gt
from torch import Tensor

from sluice.encoders.foundation.build import checked
from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.packed_cells import averaged, choices, group_of, log_shares
from sluice.training.losses.math.reduction import temperature_for
from sluice.training.losses.math.teacher_watch import TeacherWatch
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
@checked("list_net.")
class ListNet(LossBase):
    """``-mean_i sum_j softmax(y_i / target_temperature)_j log softmax(s_i / t)_j``.

    ``target``: the ``labels``, where a query whose documents all have one grade contributes
    nothing, or a ``teacher``'s scores (then the gradient is that of ``kl_div``). ``temperature`` is
    t; left out it is 0.05 for cosine and 1 for dot products.
    """

    summary = "cross-entropy of the softmax of the grades and that of the scores"
    paper = "Cao et al. 2007, top-one probability"

    target: Literal["labels", "teacher"] = "labels"
    negatives: Negatives = "own"
    temperature: Annotated[float | None, Gt(0)] = None
    target_temperature: Annotated[float, Gt(0), "Divides the labels or the teacher's scores."] = 1.0
    similarity: Literal["auto", "cosine", "dot"] = "auto"
    watch: TeacherWatch = field(
        default_factory=lambda: TeacherWatch("list_net.target_temperature"),
        init=False, repr=False, compare=False,
    )  # fmt: skip

    @property
    def needs_teacher(self) -> bool:
        """Whether a teacher gives the target."""
        return self.target == "teacher"

    def notes(self) -> dict[str, float]:
        """Return the teacher's mean entropy, where one gives the target."""
        return self.watch.notes()

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        group = group_of(matrix, taught="list_net" if self.needs_teacher else None)
        grades = group.teacher if self.needs_teacher else group.labels
        temperature = temperature_for(self.temperature, self.similarity)
        student = log_shares(group.scores / temperature, group.taking)
        shares = log_shares(grades / self.target_temperature, group.taking)
        if self.needs_teacher:
            self.watch.see(shares, group.taking, grades, self.target_temperature)
        target = shares.exp()
        rows = -(target.masked_fill(~group.taking, 0.0) * student).sum(1)
        counts = choices(group.taking)
        if not self.needs_teacher:
            first = grades.masked_fill(~group.taking, -float("inf")).amax(1, keepdim=True)
            counts = counts * (group.taking & (grades < first)).any(1)
        return averaged(rows, counts, matrix.weights, "sum")
