"""KL distillation: the student's distribution over a group drawn to a teacher's or a judge's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt
from torch import Tensor

from sluice.encoders.foundation.build import checked
from sluice.encoders.tuning.learning import APART, SCORED
from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.packed_cells import (
    averaged,
    choices,
    divergence,
    group_of,
    log_shares,
)
from sluice.training.losses.math.reduction import temperature_for
from sluice.training.losses.math.teacher_watch import TeacherWatch
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
@checked("kl_div.")
class KLDiv(LossBase):
    """``mean_i sum_j P_ij log(P_ij / p_ij)``, P = softmax(T / teacher_temperature), p of s / t.

    ``temperature`` is t; left out it is 0.05 for cosine, 1 for dot products and MaxSim, and 1/32
    for mean MaxSim and XTR. ``direction:
    reverse`` is KL(p || P), which seeks the teacher's mode. ``rescaled`` multiplies by t^2, so that
    the gradient keeps its size when t grows (Hinton et al. 2015). The distributions are over the
    documents of a query that the teacher scored; a query with fewer than two contributes nothing.

    ``negatives`` other than ``own`` compares a query with documents of other queries too: the
    teacher, one or several encoders (dense, splade, tokens, bm25), scores all pairs of each batch.
    """

    summary = "the student's distribution over a group drawn to the teacher's"
    paper = "Hinton et al. 2015; SPLADE"

    temperature: Annotated[float | None, Gt(0)] = None
    teacher_temperature: Annotated[float, Gt(0), "Divides the teacher's scores."] = 1.0
    direction: Literal["forward", "reverse"] = "forward"
    rescaled: bool = False
    negatives: Annotated[
        Negatives,
        "own: documents that the teacher scored; others: it scores all pairs of a batch, "
        "of which these count.",
    ] = "own"
    similarity: Literal["auto", "cosine", "dot"] = "auto"
    watch: TeacherWatch = field(
        default_factory=lambda: TeacherWatch("kl_div.teacher_temperature"),
        init=False, repr=False, compare=False,
    )  # fmt: skip

    @property
    def forms(self) -> tuple[str, ...]:
        """All; those of documents encoded apart where other queries' documents count."""
        return APART if self.teacher_matrix else SCORED

    @property
    def needs_teacher(self) -> bool:
        """Whether the examples bring the scores of their own documents."""
        return not self.teacher_matrix

    @property
    def teacher_matrix(self) -> bool:
        """Whether the teacher scores other queries' documents."""
        return self.negatives != "own"

    def notes(self) -> dict[str, float]:
        """Return the teacher's mean entropy."""
        return self.watch.notes()

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        temperature = temperature_for(self.temperature, self.similarity)
        group = group_of(matrix, taught="kl_div")
        student = log_shares(group.scores / temperature, group.taking)
        target = log_shares(group.teacher / self.teacher_temperature, group.taking)
        self.watch.see(target, group.taking, group.teacher, self.teacher_temperature)
        sides = (target, student) if self.direction == "forward" else (student, target)
        rows = divergence(*sides, group.taking)
        value = averaged(rows, choices(group.taking), matrix.weights, "sum")
        return value * temperature**2 if self.rescaled else value


@dataclass(frozen=True, slots=True)
@checked("judge_kl.")
class JudgeKL(LossBase):
    """``mean_i [KL(J_i || S_i) + KL(S_i || J_i)] / 2``, J and S softmaxed.

    J are a judge's scores of the query's documents, such as the probability that it answers yes,
    divided by ``judge_temperature``, S the student's by ``temperature``. Left out, the judge's is
    the student's, as in the paper: then the two are to be on one scale, as probabilities and
    cosines are (0.01 to 0.1). A query with fewer than two judged documents contributes nothing.
    """

    summary = "a judge's and the student's distributions drawn to each other"
    paper = "Gu et al. 2025 (UniME-V2, arXiv 2510.13515)"

    needs_teacher: ClassVar[bool] = True
    negatives: ClassVar[Negatives] = "own"  # a judge scores the query's own documents

    temperature: Annotated[
        float, Gt(0), "Divides the student's scores, and the judge's unless told otherwise."
    ] = 0.05
    judge_temperature: Annotated[
        float | None, Gt(0), "Divides the judge's scores; left out, as the student's."
    ] = None
    watch: TeacherWatch = field(
        default_factory=lambda: TeacherWatch("judge_kl.judge_temperature"),
        init=False, repr=False, compare=False,
    )  # fmt: skip

    def notes(self) -> dict[str, float]:
        """Return the judge's mean entropy."""
        return self.watch.notes()

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        group = group_of(matrix, taught="judge_kl")
        student = log_shares(group.scores / self.temperature, group.taking)
        divisor = self.judge_temperature or self.temperature
        judge = log_shares(group.teacher / divisor, group.taking)
        self.watch.see(judge, group.taking, group.teacher, divisor)
        both = divergence(judge, student, group.taking) + divergence(student, judge, group.taking)
        return averaged(both / 2, choices(group.taking), matrix.weights, "sum")
