"""KL distillation: the student's distribution over a group is to be the teacher's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.divergence import choices, divergence, log_shares
from sluice.training.losses.math.packed_cells import averaged, group_of, scored
from sluice.training.losses.math.scale import check_positive, temperature_for


@dataclass(frozen=True, slots=True)
class KLDiv(LossBase):
    """``mean_i sum_j P_ij log(P_ij / p_ij)``, P = softmax(T / teacher_temperature), p of s / t.

    ``temperature`` is t; left out it is 0.05 for cosine and 1 for dot products. ``direction:
    reverse`` is KL(p || P), which seeks the teacher's mode. ``rescaled`` multiplies by t^2, so that
    the gradient keeps its size when t grows (Hinton et al. 2015). The distributions are over the
    documents of a query that the teacher scored; a query with fewer than two contributes nothing.
    """

    needs_teacher: ClassVar[bool] = True
    negatives: ClassVar[Negatives] = "own"  # a teacher scores the query's own documents

    temperature: float | None = None
    teacher_temperature: float = 1.0
    direction: Literal["forward", "reverse"] = "forward"
    rescaled: bool = False
    similarity: Literal["auto", "cosine", "dot"] = "auto"

    def __post_init__(self) -> None:
        check_positive(
            kl_div__temperature=self.temperature,
            kl_div__teacher_temperature=self.teacher_temperature,
        )

    def __call__(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """Return the loss over the cells that the teacher scored. ``labels`` are not used."""
        temperature = temperature_for(self.temperature, self.similarity)
        group = group_of(scores, labels, mask, scored("kl_div", teacher))
        student = log_shares(group.scores / temperature, group.taking)
        target = log_shares(group.teacher / self.teacher_temperature, group.taking)
        sides = (target, student) if self.direction == "forward" else (student, target)
        value = averaged(divergence(*sides, group.taking), choices(group.taking), weights, "sum")
        return value * temperature**2 if self.rescaled else value
