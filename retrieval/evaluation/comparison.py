"""Compares systems: means, significance and equivalence against a baseline, values by query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.figures import csv_text
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import plural
from sluice.familiar import renamed
from sluice.retrieval.evaluation.measures import Measure, parse_measure
from sluice.retrieval.evaluation.scores import Scores, Truth, evaluate
from sluice.retrieval.evaluation.significance import (
    CORRECTIONS,
    effect,
    equivalence,
    fisher_randomisation,
    paired_bootstrap,
    paired_t_test,
)
from sluice.retrieval.evaluation.table import MARK, Comparison, Table, Value, mark_significant

Values = NDArray[np.float64]  # of one measure, a query each

TESTS = {
    "t-test": "paired two-sided t-test",
    "fisher": "two-sided Fisher randomisation test",
    "bootstrap": "two-sided paired bootstrap test",
}
CORRECTED = {
    "holm": "Holm-corrected",
    "bonferroni": "Bonferroni-corrected",
    "none": "not corrected",
}

Test = Literal["t-test", "fisher", "bootstrap"]
Correction = Literal["holm", "bonferroni", "none"]


@dataclass(frozen=True, slots=True)
class SignificanceTest:
    """How differences are tested: which test, how many systems are corrected for, at what level.

    ``permutations`` are those of Fisher's test and the samples of the bootstrap, drawn by ``seed``.
    Raises ``ConfigError`` for an unknown test or correction and numbers out of range.
    """

    test: Test = "t-test"
    correction: Correction = "holm"
    alpha: float = 0.05
    permutations: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        for what, name, known in (
            ("test", self.test, TESTS), ("correction", self.correction, CORRECTIONS)
        ):  # fmt: skip
            if name not in known:
                raise ConfigError(
                    f"unknown {what} {name!r}; known: {', '.join(known)}{suggest(name, known)}"
                )
        if not 0 < self.alpha < 1:
            raise ConfigError(f"alpha is {self.alpha}; expected a value between 0 and 1, as 0.05")
        if self.permutations < 1:
            raise ConfigError(f"permutations is {self.permutations}; expected 1 or more, as 10000")

    def compared(
        self, system: str, baseline: str, measure: str, one: Values, base: Values
    ) -> Comparison:
        """Test one system's values against the baseline's, query by query; nothing is corrected."""
        measured = effect(one, base, self.alpha)
        low, high = (measured.low, measured.high) if len(one) > 1 else (None, None)
        if self.test == "t-test":
            p = paired_t_test(one, base)
        elif self.test == "fisher":
            p = fisher_randomisation(one, base, permutations=self.permutations, seed=self.seed)
        else:
            resampled = paired_bootstrap(
                one, base, resamples=self.permutations, seed=self.seed, alpha=self.alpha
            )
            p = resampled.p_value
            if len(one) > 1:
                low, high = resampled.low, resampled.high
        better = one - base
        return Comparison(
            system, baseline, measure, measured.difference, p, p, p < self.alpha,
            int((better > 0).sum()), int((better == 0).sum()), int((better < 0).sum()),
            measured.size, low, high,
        )  # fmt: skip

    def corrected(self, family: Sequence[Comparison]) -> list[Comparison]:
        """Return the comparisons with p-values corrected over all of them together."""
        p_values = CORRECTIONS[self.correction]([each.p for each in family])
        return [
            replace(each, p_corrected=p, significant=p < self.alpha)
            for each, p in zip(family, p_values, strict=True)
        ]

    def caption(self, baseline: str, over: str) -> str:
        """Return what the mark of a table means."""
        correction = (
            f"{CORRECTED[self.correction]}{'' if self.correction == 'none' else f' over {over}'}"
        )
        return (
            f"{MARK} differs from {baseline}: {TESTS[self.test]}, p < {self.alpha:g}, {correction}"
        )

    def table_caption(self, baseline: str, others: int, queries: int) -> str:
        """Return the caption of a table of the baseline and ``others`` on the same queries."""
        over = plural(others, "system")
        return f"{self.caption(baseline, over)}; {plural(queries, 'query')}."


@renamed(measures="metrics")
def compare(
    runs: Mapping[str, Any],
    qrels: Any,
    *others: Any,
    measures: Iterable[str | Measure] | None = None,
    baseline: str | None = None,
    test: Test = "t-test",
    correction: Correction = "holm",
    alpha: float = 0.05,
    permutations: int = 10_000,
    seed: int = 0,
) -> Table:
    """Score every run on the same judgements and test each against the baseline.

    What follows the runs is as in ``evaluate``: qrels and measures, or of pipelines queries, qrels
    and measures.

    ``baseline`` is the first run unless named. P-values are corrected over the systems, measure by
    measure; a dagger marks means that differ from the baseline's at ``alpha``. Queries a run lacks
    count 0. Raises ``ConfigError`` for an unknown baseline, test or measure; see
    ``SignificanceTest``.
    """
    if not runs or not isinstance(runs, Mapping):
        raise ConfigError('compare: no runs by name; write: compare({"a": run}, qrels)')
    testing = SignificanceTest(test, correction, alpha, permutations, seed)
    truth = qrels.qrels if isinstance(qrels, Truth) else qrels
    rest = [list(each) if isinstance(each, Iterator) else each for each in others]
    scores = {name: evaluate(run, truth, *rest, measures=measures) for name, run in runs.items()}
    return compare_scores(scores, baseline=baseline, testing=testing)


def compare_scores(
    scores: Mapping[str, Scores],
    *,
    baseline: str | None = None,
    testing: SignificanceTest | None = None,
) -> Table:
    """Do as ``compare`` with scores that are computed already, all of the same queries."""
    testing = testing or SignificanceTest()
    base = baseline_of(scores, baseline)
    names = list(scores[base].mean)
    table = Table(columns=dict.fromkeys(names, ".4f"))
    table.rows = {system: {n: own.mean[n] for n in names} for system, own in scores.items()}
    others = [system for system in scores if system != base]
    for measure in names:
        values = {system: aligned(scores[base], scores[system], measure) for system in scores}
        family = [
            testing.compared(system, base, measure, values[system], values[base])
            for system in others
        ]
        table.comparisons += testing.corrected(family)
    mark_significant(table)
    if others:
        table.caption = testing.table_caption(base, len(others), scores[base].queries)
    return table


def baseline_of(systems: Mapping[str, Any], baseline: str | None) -> str:
    """Return the baseline's name, the first system's unless given; ``ConfigError`` if unknown."""
    base = next(iter(systems)) if baseline is None else baseline
    if base not in systems:
        raise ConfigError(
            f"baseline {base!r} is not among the systems {', '.join(systems)}"
            f"{suggest(base, systems)}"
        )
    return base


def differences(comparisons: Sequence[Comparison]) -> Table:
    """Return the tests behind a table's marks as a table of their own."""
    table = Table()
    table.rows = {f"{c.system} - {c.baseline}, {c.measure}": {} for c in comparisons}
    columns: dict[str, tuple[str, Callable[[Comparison], Value]]] = {
        "difference": ("+.4f", lambda c: c.difference),
        "interval": ("", _interval),
        "effect d": ("+.2f", lambda c: c.effect_size),
        "p": (".4g", lambda c: c.p),
        "p corrected": (".4g", lambda c: c.p_corrected),
        "win/tie/loss": ("", lambda c: f"{c.wins}/{c.ties}/{c.losses}"),
    }
    for name, (form, value) in columns.items():
        cells = zip(table.rows, map(value, comparisons), strict=True)
        table.add_column(name, dict(cells), form)
    return table


def _interval(comparison: Comparison) -> Value:
    if comparison.low is None or comparison.high is None:
        return None
    return f"[{comparison.low:+.4f}, {comparison.high:+.4f}]"


def aligned(base: Scores, scores: Scores, measure: str) -> Values:
    """Return the values of one measure in the baseline's order of queries."""
    expected, values = base.per_query[measure], scores.per_query[measure]
    if expected.keys() != values.keys():
        raise ConfigError(
            f"{measure}: the systems were scored on different queries ({len(expected):,} and "
            f"{len(values):,}); score all of them against the same qrels"
        )
    return np.array([values[query] for query in expected])


def per_query_csv(scores: Mapping[str, Scores], measure: str, baseline: str | None = None) -> str:
    """Return a line for each query: every system's value, and its difference to the baseline's.

    Queries are sorted by the last system's difference, the largest first, then in the qrels' order.
    """
    base, name = baseline_of(scores, baseline), str(parse_measure(measure))
    others = [system for system in scores if system != base]
    queries = list(scores[base].per_query[name])
    values = {system: aligned(scores[base], scores[system], name) for system in scores}
    differences = {system: values[system] - values[base] for system in others}
    rows: list[list[str | float]] = []
    last = differences[others[-1]] if others else values[base]
    for place in sorted(range(len(queries)), key=lambda place: -last[place]):
        cells: list[str | float] = [float(values[system][place]) for system in scores]
        cells += [float(differences[system][place]) for system in others]
        rows.append([queries[place], *cells])
    return csv_text([["query", *scores, *(f"{system} - {base}" for system in others)], *rows])


def equivalences(scores: Mapping[str, Scores], share: float, baseline: str | None = None) -> Table:
    """Test, by measure, which systems are the baseline's equals to within a share of its mean.

    Two one-sided paired t-tests, see ``sluice.retrieval.evaluation.significance.equivalence``;
    p-values are not corrected. A baseline whose mean is 0 has no bound, and its row is empty.
    """
    if not 0 < share < 1:
        raise ConfigError(f"equivalence: {share}; expected a share between 0 and 1, such as 0.05")
    base = baseline_of(scores, baseline)
    table = Table(columns={"difference": "+.4f", "bound": ".4f", "p (TOST)": ".4g"})
    for name, mean in scores[base].mean.items():
        for system in (system for system in scores if system != base):
            row = table.rows.setdefault(f"{system} = {base}, {name}", {})
            if mean <= 0:
                continue
            one, other = (aligned(scores[base], scores[s], name) for s in (system, base))
            test = equivalence(one, other, share * mean)
            row["difference"], row["bound"] = test.difference, share * mean
            row["p (TOST)"] = test.p_value
    table.caption = f"Equivalent to within {share:.0%} of {base}'s mean where p is small."
    return table
