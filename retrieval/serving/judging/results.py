"""Makes qrels of judgements: one grade for each pair, by a rule where several people judged it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Annotated, Any

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.retrieval.serving.judging.judgements import GRADES, Judgements, Qrels
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


BEIR_HEADER = "query-id\tcorpus-id\tscore\n"
FORMATS = ("beir", "trec")


def majority(grades: Sequence[int]) -> int:
    """Return the most frequent grade; of equally frequent ones the lowest."""
    counts = Counter(grades)
    most = max(counts.values())
    return min(grade for grade, count in counts.items() if count == most)


def mean(grades: Sequence[int]) -> int:
    """Return the mean, rounded; a half is rounded up."""
    return (2 * sum(grades) + len(grades)) // (2 * len(grades))


RULES: Mapping[str, Callable[[Sequence[int]], int]] = {
    "majority": majority,
    "mean": mean,
    "max": max,
}


def qrels_of(
    judgements: Judgements,
    rule: Annotated[
        str,
        "The grade where several judged: majority (of a tie the lower), mean (rounded, a half up) "
        "or max.",
    ] = "majority",
    assessors: Annotated[
        Sequence[str], "NAME", "Judgements of this assessor only; may be repeated."
    ] = (),
) -> Qrels:
    """Return one grade for each judged pair: of all assessors, or of those that are named.

    What was skipped has no grade. ``DataError`` if nothing is judged, ``ConfigError`` for a name
    that nobody has or an unknown rule.
    """
    if rule not in RULES:
        known = ", ".join(RULES)
        raise ConfigError(f"rule: {rule!r}; expected one of {known}{suggest(rule, RULES)}")
    known_names = judgements.assessors
    for name in assessors:
        if name not in known_names:
            listing = ", ".join(known_names) or "nobody has judged"
            raise ConfigError(
                f"assessor: {name!r}; expected one of {listing}{suggest(name, known_names)}"
            )
    graded = judgements.grades_by_pair(assessors or known_names)
    if not graded:
        raise DataError("no document is judged yet; qrels need one judgement at least")
    return {
        query: {document: RULES[rule](grades) for document, grades in of_query.items()}
        for query, of_query in graded.items()
    }


def unjudged(judgements: Judgements, qrels: Qrels) -> int:
    """Return how many candidates of the queries in qrels have no grade there."""
    return sum(
        document not in graded
        for query, graded in qrels.items()
        for document in judgements.pools.get(query, {})
    )


def qrels_text(
    qrels: Qrels,
    form: Annotated[str, "beir (three columns with a header) or trec (four)."] = "beir",
) -> str:
    """Return qrels as BEIR's three columns with a header, or as TREC's four.

    ``DataError`` for an id with white space that the form cannot hold.
    """
    if form not in FORMATS:
        raise ConfigError(
            f"format: {form!r}; expected one of {', '.join(FORMATS)}{suggest(form, FORMATS)}"
        )
    rows = [(q, doc, grade) for q, graded in qrels.items() for doc, grade in graded.items()]
    _check_ids((name for query, document, _ in rows for name in (query, document)), form)
    if form == "trec":
        return "".join(f"{query} 0 {document} {grade}\n" for query, document, grade in rows)
    lines = "".join(f"{query}\t{document}\t{grade}\n" for query, document, grade in rows)
    return BEIR_HEADER + lines


def _check_ids(names: Iterable[str], form: str) -> None:
    for name in names:
        if form == "trec" and name.split() != [name]:
            raise DataError(f"id {name!r:.80}: has white space, which TREC's form cannot hold; "
                            "choose beir, or rename it")  # fmt: skip
        if "\t" in name or name.splitlines() != [name]:
            raise DataError(f"id {name!r:.80}: has a tab or a line break; rename it")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise DataError(f"id {name!a:.80}: is not Unicode and cannot be written") from None
