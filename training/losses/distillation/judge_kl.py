"""Judge distillation: a judge's and the student's distributions drawn to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.divergence import choices, divergence, log_shares
from sluice.training.losses.math.packed_cells import averaged, group_of
from sluice.training.losses.math.scale import check_positive
from sluice.training.protocol import ScoreMatrix


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
