"""Averages over collections: intervals and tests that respect that each has its own queries."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from sluice.retrieval.evaluation.comparison import SignificanceTest, Values
from sluice.retrieval.evaluation.table import Comparison, Table

AVERAGE, HALF = "average", "average ±"


def stratified_mean(
    values: Mapping[str, Values], weights: Mapping[str, float], alpha: float = 0.05
) -> tuple[float, float | None, float | None]:
    """Return the weighted mean of collections' means, half its interval, and p of its being 0.

    Queries are independent samples of each collection (strata), so the variance is the sum of
    weight^2 s^2 / n, with Satterthwaite's degrees of freedom (Cochran, Sampling Techniques, 1977,
    5.4). Other collections may come out otherwise. A single query has no variance: None.
    """
    mean = sum(weights[name] * float(values[name].mean()) for name in weights)
    if any(len(values[name]) < 2 for name in weights):
        return mean, None, None
    parts = {n: weights[n] ** 2 * float(values[n].var(ddof=1)) / len(values[n]) for n in weights}
    variance = sum(parts.values())
    if variance == 0:
        return mean, 0.0, float(mean == 0)
    from scipy.special import stdtr, stdtrit

    freedom = variance**2 / sum(part**2 / (len(values[n]) - 1) for n, part in parts.items())
    error = math.sqrt(variance)
    p = 2.0 * float(stdtr(freedom, -abs(mean) / error))
    return mean, float(stdtrit(freedom, 1 - alpha / 2)) * error, p


def add_averages(
    table: Table,
    systems: Mapping[str, Mapping[str, Values]],
    weights: Mapping[str, float],
    base: str,
    measure: str,
    testing: SignificanceTest,
) -> None:
    """Add each system's average to a suite's table, half its interval, and its test.

    By the t-test of ``stratified_mean``, paired by query, whatever test the collections have.
    """
    found = {s: stratified_mean(values, weights, testing.alpha) for s, values in systems.items()}
    table.add_column(AVERAGE, {system: mean for system, (mean, *_) in found.items()}, ".4f")
    table.add_column(HALF, {system: half for system, (_, half, _) in found.items()}, ".4f")
    family = []
    for system in systems:
        better = {name: systems[system][name] - systems[base][name] for name in weights}
        mean, half, p = stratified_mean(better, weights, testing.alpha)
        if system != base and half is not None and p is not None:
            signs = np.sign(np.concatenate(list(better.values()))).tolist()
            wins, ties, losses = map(signs.count, (1.0, 0.0, -1.0))
            family.append(Comparison(
                system, base, measure, mean, p, p, p < testing.alpha, wins, ties, losses, None,
                mean - half, mean + half, AVERAGE,
            ))  # fmt: skip
    table.comparisons += testing.corrected(family)
