"""The anchored hinge: pairs in order, and each score in the interval of its grade."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.tuning.learning import Form
from sluice.training.batches.targets import Negatives
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.packed_cells import averaged, group_of
from sluice.training.losses.math.pair_sums import hinge, ordered, ordered_pairs, pair_sums
from sluice.training.losses.math.reduction import weighted_mean
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
@checked("anchored_hinge.")
class AnchoredHinge(LossBase):
    """``hinge + anchor_weight * anchor`` of probabilities f = sigmoid(s).

    hinge: the mean over pairs of which i has the higher grade of ``max(0, margin - (f_i - f_j))``.
    anchor: the mean over documents of ``max(0, (f - c)^2 - h^2)``, whose grade y has the interval
    with the middle ``c = (y + 1/2) / grades`` and half the width ``h = 1 / (2 grades)``. A hinge
    alone leaves every query a scale of its own; so a probability above ``k / grades`` says grade k
    or more, and a threshold means the same for all queries. ``grades`` is how many there are, 0
    included: 2 for labels of 0 and 1. ``anchor_weight`` is what the anchor counts.
    """

    summary = "pairs in order, and each score in the interval of its grade"
    paper = "Zou et al. 2021 (arXiv 2105.11108)"

    forms: ClassVar[tuple[Form, ...]] = ("scores",)  # what it trains
    negatives: ClassVar[Negatives] = "own"  # only the query's own documents have grades

    margin: Annotated[float, Gt(0), "The difference below which a pair counts."] = 0.1
    anchor_weight: Annotated[float, Gt(0)] = 0.7
    grades: Annotated[int, Ge(2), "Grades of the style graded, from 0."] = 2

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        chances = torch.sigmoid(matrix.scores)
        group = group_of(matrix._replace(scores=chances))
        most = float(group.labels.max()) if group.labels.numel() else 0.0
        if most > self.grades - 1:
            raise DataError(
                f"anchored_hinge: a label is {most:g}, and grades: {self.grades} says that the "
                f"highest is {self.grades - 1}; set grades to the number of grades, 0 included"
            )
        margin = chances.new_tensor(self.margin)
        cost = hinge(lambda rows: margin, lambda rows: ordered(group, group.labels, rows))
        sums = pair_sums(group.scores, cost)
        pairs = averaged(sums, ordered_pairs(group, group.labels), matrix.weights, "queries")
        middle = (matrix.labels.clamp(min=0) + 0.5) / self.grades
        outside = ((chances - middle) ** 2 - (0.5 / self.grades) ** 2).clamp(min=0)
        anchor = weighted_mean(outside, matrix.mask, matrix.weights)
        return pairs + self.anchor_weight * anchor
