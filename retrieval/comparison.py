"""Systems side by side: means, and which differences to a baseline are significant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from encoders.errors import ConfigError, suggest
from retrieval.evaluation import Qrels, Scores, Truth, evaluate
from retrieval.measures import Measure
from retrieval.ranking import Run
from retrieval.significance import fisher_randomisation, holm, paired_t_test
from retrieval.table import Comparison, Table

MARK = "†"
TESTS = {"t-test": "paired two-sided t-test", "fisher": "two-sided Fisher randomisation test"}


def compare(
    runs: Mapping[str, Run | Mapping[str, Any]],
    qrels: Truth | Qrels,
    measures: Iterable[str | Measure],
    *,
    baseline: str | None = None,
    test: Literal["t-test", "fisher"] = "t-test",
    alpha: float = 0.05,
    permutations: int = 10_000,
    seed: int = 0,
) -> Table:
    """Score every run on the same judgements and test each against the baseline.

    ``baseline`` is the first run unless named. P-values are corrected by Holm over the systems,
    measure by measure; a dagger marks means that differ from the baseline's at ``alpha``. Queries
    a run lacks count 0. ``permutations`` and ``seed`` are the Fisher test's. Raises
    ``ConfigError`` for an unknown baseline, test or measure.
    """
    wanted = [measures] if isinstance(measures, str | Measure) else list(measures)
    if not runs:
        raise ConfigError("compare got no runs; expected {name: run}")
    truth = qrels.qrels if isinstance(qrels, Truth) else qrels
    scores = {name: evaluate(run, truth, wanted) for name, run in runs.items()}
    return compare_scores(
        scores, baseline=baseline, test=test, alpha=alpha, permutations=permutations, seed=seed
    )


def compare_scores(
    scores: Mapping[str, Scores],
    *,
    baseline: str | None = None,
    test: Literal["t-test", "fisher"] = "t-test",
    alpha: float = 0.05,
    permutations: int = 10_000,
    seed: int = 0,
) -> Table:
    """Do what ``compare`` does with scores that are there already, all of the same queries."""
    if test not in TESTS:
        raise ConfigError(f"unknown test {test!r}; known: {', '.join(TESTS)}{suggest(test, TESTS)}")
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha is {alpha}; expected a value between 0 and 1, such as 0.05")
    if permutations < 1:
        raise ConfigError(f"permutations is {permutations}; expected 1 or more, such as 10000")
    base = next(iter(scores)) if baseline is None else baseline
    if base not in scores:
        raise ConfigError(
            f"baseline {base!r} is not among the systems {', '.join(scores)}{suggest(base, scores)}"
        )
    names = list(scores[base].mean)
    table = Table(columns=dict.fromkeys(names, ".4f"))
    table.rows = {system: {n: given.mean[n] for n in names} for system, given in scores.items()}
    others = [system for system in scores if system != base]
    for measure in names:
        values = {system: _aligned(scores[base], scores[system], measure) for system in scores}
        p_values = [
            paired_t_test(values[system], values[base])
            if test == "t-test"
            else fisher_randomisation(
                values[system], values[base], permutations=permutations, seed=seed
            )
            for system in others
        ]
        for system, p, corrected in zip(others, p_values, holm(p_values), strict=True):
            difference = values[system] - values[base]
            comparison = Comparison(
                system, base, measure, float(difference.mean()), p, corrected, corrected < alpha,
                int((difference > 0).sum()), int((difference == 0).sum()),
                int((difference < 0).sum()),
            )  # fmt: skip
            table.comparisons.append(comparison)
            if comparison.significant:
                table.marks[system, measure] = MARK
    if others:
        table.caption = (
            f"{MARK} differs from {base}: {TESTS[test]}, p < {alpha:g}, Holm-corrected over "
            f"{len(others)} system{'s' * (len(others) > 1)}; {scores[base].queries:,} queries."
        )
    return table


def _aligned(base: Scores, given: Scores, measure: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the values of one measure in the baseline's order of queries."""
    expected, values = base.per_query[measure], given.per_query[measure]
    if expected.keys() != values.keys():
        raise ConfigError(
            f"{measure}: the systems were scored on different queries ({len(expected):,} and "
            f"{len(values):,}); score all of them against the same qrels"
        )
    return np.array([values[query] for query in expected])
