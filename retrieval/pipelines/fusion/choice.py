"""Chooses among weights by judged queries so that few queries cannot mislead it much.

Smoothed bagging: of many bootstrap samples of the queries, each takes the weights whose smoothed
mean is best, and the average of these is chosen. On samples of 5 to 300 dev queries of four
collections it was better than the best weights of the sample, the one-standard-error rule and
weights shrunk to equal ones, and below the best single part least often (docs/decisions/019).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.retrieval.evaluation.significance import paired_bootstrap

Array = NDArray[np.float64]

SAMPLES = 100  # bootstrap samples
WIDTH = 0.15  # of the smoothing, in the distance of weights
FOLDS = 5
RESAMPLES = 2000  # for the interval


class Gain(NamedTuple):
    """A mean difference on queries that were not used for the choice, and its 95 % interval."""

    mean: float
    low: float
    high: float


def kernel(points: Array) -> Array:
    """Return ``[points, points]``, rows that add up to 1: Gaussian weights of the neighbours."""
    distances = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
    weights = np.exp(-distances / (2 * WIDTH**2))
    smoothing: Array = weights / weights.sum(axis=1, keepdims=True)
    return smoothing


def bagged(values: Array, points: Array, smoothing: Array, seed: int = 0) -> int:
    """Return the place of the point nearest to the mean of what bootstrap samples choose.

    ``values`` ``[points, queries]``; of equal values the first point is taken.
    """
    count = values.shape[1]
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), SAMPLES)
    means = smoothing @ (values @ (draws.T / count))  # [points, samples]
    best = np.round(means, 9).argmax(axis=0)
    return nearest(points, points[best].mean(axis=0))


def nearest(points: Array, point: Array) -> int:
    """Return the place of the nearest point, the first of equally near ones."""
    return int(np.round(((points - point) ** 2).sum(axis=1), 9).argmin())


def held_out(values: Array, choose: Callable[[Array], int]) -> Array | None:
    """Return the value of each query under what is chosen without its fold; None for one query.

    ``values`` ``[candidates, queries]``; ``choose`` gets those of the other folds' queries.
    """
    count = values.shape[1]
    folds = min(FOLDS, count)
    if folds < 2:
        return None
    scored = np.empty(count)
    for fold in range(folds):
        held = np.arange(count) % folds == fold
        scored[held] = values[choose(values[:, ~held]), held]
    return scored


def gain_over(values: Array | None, baseline: Array) -> Gain | None:
    """Return how far held-out values are above a baseline's, with a bootstrap interval."""
    if values is None:
        return None
    interval = paired_bootstrap(values, baseline, resamples=RESAMPLES)
    return Gain(float((values - baseline).mean()), interval.low, interval.high)
