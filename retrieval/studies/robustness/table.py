"""The outcomes of a stress test, and their table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.retrieval.evaluation.comparison import MARK, SignificanceTest
from sluice.retrieval.evaluation.measures import Measure, over_queries
from sluice.retrieval.evaluation.table import Table

CLEAN = "clean"
TOP = 10  # ranks that count as promotion

Values = NDArray[np.float64]


class Shift(NamedTuple):
    """A document's rank, from 1, in the clean ranking and in the one where it is perturbed.

    A document that fell out of the results has the rank after the last.
    """

    query: str
    doc_id: str
    before: int
    after: int


@dataclass(slots=True)
class Outcome:
    """One perturbation's effect on one system; ``values`` has a number per query by measure."""

    queries: list[str]
    values: dict[str, Values]
    overlaps: list[float]
    shifts: list[Shift] = field(default_factory=list)

    @property
    def rbo(self) -> float | None:
        """The mean rank-biased overlap with the clean ranking, over the first 100 documents."""
        return float(np.mean(self.overlaps)) if self.overlaps else None


class Filtering(NamedTuple):
    """The stuffing filter's threshold, and the shares of clean and stuffed documents it flags."""

    threshold: float
    false_positives: float
    stuffed: float


@dataclass(slots=True)
class Robustness:
    """The outcomes by system and perturbation (``clean`` comes first), and their table."""

    outcomes: dict[str, dict[str, Outcome]]
    filtering: dict[str, Filtering]
    skipped: dict[str, str]
    table: Table


def outcome_table(result: Robustness, measures: Sequence[Measure], alpha: float) -> Table:
    """Return a row for each system and perturbation."""
    table = Table()
    for name in map(str, measures):
        table.columns |= {name: ".4f", f"{name} change": "+.4f", f"{name} p": ".2g"}
    table.columns |= {"RBO": ".3f", "median shift": "+.0f", f"into top {TOP}": ".1%"}
    for system, outcomes in result.outcomes.items():
        for perturbation, outcome in outcomes.items():
            row = table.rows.setdefault(f"{system} {perturbation}", {"RBO": outcome.rbo})
            if outcome.shifts:
                moved = [shift.before - shift.after for shift in outcome.shifts]
                row["median shift"] = float(np.median(moved))
                promoted = [shift.after <= TOP for shift in outcome.shifts]
                row[f"into top {TOP}"] = float(np.mean(promoted))
        for measure in measures:
            for perturbation, outcome in outcomes.items():
                if outcome.queries:
                    value = over_queries(measure, outcome.values[str(measure)])
                    table.rows[f"{system} {perturbation}"][str(measure)] = value
            _add_tests(table, system, str(measure), outcomes, alpha)
    table.caption = _caption(result, alpha)
    return table


def _add_tests(
    table: Table,
    system: str,
    measure: str,
    outcomes: Mapping[str, Outcome],
    alpha: float,
) -> None:
    """Add the changes to the clean run, their p-values and marks."""
    clean = outcomes[CLEAN]
    base = dict(zip(clean.queries, clean.values[measure].tolist(), strict=True))
    perturbed = {name: each for name, each in outcomes.items() if name != CLEAN and each.queries}
    before = {name: np.array([base[q] for q in each.queries]) for name, each in perturbed.items()}
    testing = SignificanceTest(alpha=alpha)
    family = [
        testing.compared(
            f"{system} {name}", f"{system} {CLEAN}", measure, each.values[measure], before[name]
        )
        for name, each in perturbed.items()
    ]
    for change in testing.corrected(family):
        row = table.rows[change.system]
        row[f"{measure} change"] = change.difference
        row[f"{measure} p"] = change.p_corrected
        if change.significant:
            table.marks[change.system, f"{measure} change"] = MARK
        table.comparisons.append(change)


def _caption(result: Robustness, alpha: float) -> str:
    counts = [len(outcomes[CLEAN].queries) for outcomes in result.outcomes.values()]
    parts = [
        f"{MARK} differs from the system's clean run: paired two-sided t-test, p < {alpha:g}, "
        f"Holm-corrected over its perturbations; {max(counts, default=0):,} queries. Perturbed "
        f"documents are not judged relevant and rank below {TOP}, one at a time; a positive shift "
        "is upwards."
    ]
    parts += [
        f"{name}: a stuffing filter (share of query terms above {each.threshold:.2f}) flags "
        f"{each.stuffed:.1%} of the stuffed documents and {each.false_positives:.1%} of clean ones."
        for name, each in result.filtering.items()
    ]
    parts += [f"{name}: no document was perturbed ({why})." for name, why in result.skipped.items()]
    return " ".join(parts)
