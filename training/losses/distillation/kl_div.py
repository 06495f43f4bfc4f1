"""KL distillation: the student's distribution over a group drawn to a teacher's or a judge's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.packed_cells import (
    averaged,
    choices,
    divergence,
    group_of,
    log_shares,
)
from sluice.training.losses.math.reduction import check_positive, temperature_for
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
class KLDiv(LossBase):
    """``mean_i sum_j P_ij log(P_ij / p_ij)``, P = softmax(T / teacher_temperature), p of s / t.

    ``temperature`` is t; left out it is 0.05 for cosine and 1 for dot products. ``direction:
    reverse`` is KL(p || P), which seeks the teacher's mode. ``rescaled`` multiplies by t^2, so that
    the gradient keeps its size when t grows (Hinton et al. 2015). The distributions are over the
    documents of a query that the teacher scored; a query with fewer than two contributes nothing.
    """

    summary = "the student's distribution over a group drawn to the teacher's"
    paper = "Hinton et al. 2015; SPLADE"

    needs_teacher: ClassVar[bool] = True
    negatives: ClassVar[Negatives] = "own"  # a teacher scores the query's own documents

    temperature: float | None = None
    teacher_temperature: float = 1.0
    direction: Literal["forward", "reverse"] = "forward"
    rescaled: bool = False
    similarity: Literal["auto", "cosine", "dot"] = "auto"

    def __post_init__(self) -> None:
        check_positive(
            "kl_div",
            temperature=self.temperature,
            teacher_temperature=self.teacher_temperature,
        )

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        temperature = temperature_for(self.temperature, self.similarity)
        group = group_of(matrix, taught="kl_div")
        student = log_shares(group.scores / temperature, group.taking)
        target = log_shares(group.teacher / self.teacher_temperature, group.taking)
        sides = (target, student) if self.direction == "forward" else (student, target)
        rows = divergence(*sides, group.taking)
        value = averaged(rows, choices(group.taking), matrix.weights, "sum")
        return value * temperature**2 if self.rescaled else value


@dataclass(frozen=True, slots=True)
class JudgeKL(LossBase):
    """``mean_i [KL(J_i || S_i) + KL(S_i || J_i)] / 2``, both softmaxed at one temperature.

    J are a judge's scores of the query's documents, such as the probability that it answers yes,
    S the student's: the two are to be on one scale, as probabilities and cosines are; other scores
    need a ``temperature`` near their own spread (0.01 to 0.1 for the former). A query with fewer
    than two judged documents contributes nothing.
    """

    summary = "a judge's and the student's distributions drawn to each other"
    paper = "Gu et al. 2025 (UniME-V2, arXiv 2510.13515)"

    needs_teacher: ClassVar[bool] = True
    negatives: ClassVar[Negatives] = "own"  # a judge scores the query's own documents

    temperature: float = 0.05

    def __post_init__(self) -> None:
        check_positive("judge_kl", temperature=self.temperature)

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        group = group_of(matrix, taught="judge_kl")
        student = log_shares(group.scores / self.temperature, group.taking)
        judge = log_shares(group.teacher / self.temperature, group.taking)
        both = divergence(judge, student, group.taking) + divergence(student, judge, group.taking)
        return averaged(both / 2, choices(group.taking), matrix.weights, "sum")
