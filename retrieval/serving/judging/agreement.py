"""How people who judged the same documents agree: kappa of each two, alpha of all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from sluice.retrieval.serving.judging.entries import GRADES
from sluice.retrieval.serving.judging.state import Judgements
from sluice.retrieval.studies.judging.label_agreement import (
    SCALES,
    kappa_of,
    krippendorff_alpha,
)


@dataclass(frozen=True, slots=True)
class Assessor:
    """What one person judged: ``grades[g]`` documents got grade g."""

    name: str
    judged: int
    skipped: int
    grades: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TwoAssessors:
    """How two people agree on the ``pairs`` that both judged.

    Cohen's kappa without weights and with quadratic ones, None where both gave one grade only.
    """

    first: str
    second: str
    pairs: int
    same: float
    kappa: float | None
    weighted_kappa: float | None


@dataclass(frozen=True, slots=True)
class AssessorAgreement:
    """What each judged, and how they agree on the ``shared`` pairs that two or more judged.

    ``alpha`` is Krippendorff's by scale, None where all these grades are equal.
    """

    assessors: tuple[Assessor, ...]
    shared: int
    alpha: Mapping[str, float | None]
    two: tuple[TwoAssessors, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        width = max((len(each.name) for each in self.assessors), default=8)
        heads = "".join(f"{f'grade {grade}':>9}" for grade in GRADES)
        lines = [f"{'assessor':<{width}}   judged  skipped{heads}"]
        lines += [
            f"{each.name:<{width}}{each.judged:>9,}{each.skipped:>9,}"
            + "".join(f"{count:>9,}" for count in each.grades)
            for each in self.assessors
        ]
        if not self.shared:
            return "\n".join([*lines, "", "no document was judged by two: agreement is unknown"])
        lines += ["", f"judged by two or more: {self.shared:,} pairs of query and document"]
        lines += [f"alpha ({f'{scale})':<10}{_figure(a)}" for scale, a in self.alpha.items()]
        pair = 2 * width + 3  # the width of two names
        heads = "   pairs     same    kappa  kappa (quadratic)"
        lines += ["", f"{'two assessors':<{pair}}{heads}"]
        lines += [
            f"{f'{each.first}, {each.second}':<{pair}}{each.pairs:>8,}{each.same:>9.4f}"
            f"{_figure(each.kappa):>9}{_figure(each.weighted_kappa):>19}"
            for each in self.two
        ]
        return "\n".join(lines)


def assessor_agreement(judgements: Judgements) -> AssessorAgreement:
    """Compare what assessors said of the documents that two or more of them judged."""
    names = judgements.assessors
    graded = {
        name: {
            (query, document): grade
            for query, of_query in judgements.grades_of(name).items()
            for document, grade in of_query.items()
        }
        for name in names
    }
    skipped = dict.fromkeys(names, 0)
    for said in judgements:
        skipped[said.assessor] += said.skipped
    pairs = list(dict.fromkeys(pair for own in graded.values() for pair in own))
    table = np.full((len(names), len(pairs)), np.nan)
    for row, own in enumerate(graded.values()):
        for column, pair in enumerate(pairs):
            table[row, column] = own.get(pair, np.nan)
    return AssessorAgreement(
        assessors=tuple(
            Assessor(
                name,
                len(own),
                skipped[name],
                tuple(sum(grade == each for each in own.values()) for grade in GRADES),
            )
            for name, own in graded.items()
        ),
        shared=int((np.isfinite(table).sum(axis=0) >= 2).sum()),
        alpha={scale: _known(krippendorff_alpha(table, scale)) for scale in SCALES},
        two=tuple(
            two
            for one, other in combinations(names, 2)
            if (two := _two(one, other, graded)) is not None
        ),
    )


def _two(
    first: str, second: str, graded: Mapping[str, Mapping[tuple[str, str], int]]
) -> TwoAssessors | None:
    both = [(grade, graded[second][p]) for p, grade in graded[first].items() if p in graded[second]]
    if not both:
        return None
    confusion = np.zeros((len(GRADES), len(GRADES)), np.int64)
    for one, other in both:
        confusion[one, other] += 1
    return TwoAssessors(
        first,
        second,
        len(both),
        float(np.trace(confusion)) / len(both),
        _known(float(kappa_of(confusion))),
        _known(float(kappa_of(confusion, "quadratic"))),
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
