"""Stages whose settings are open, and their choice, which few judged queries cannot mislead much.

A stage says which settings it has, and how well the queries do with each; what is taken, what it is
worth on other queries, and the file of the choice are the same for all.

Smoothed bagging: of many bootstrap samples of the queries, each takes the weights whose smoothed
mean is best, and the average of these is chosen. On samples of 5 to 300 dev queries of four
collections it was better than the best weights of the sample, the one-standard-error rule and
weights shrunk to equal ones, and below the best single part least often (docs/decisions/019).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.evaluation.fitted_file import FittedFile
from sluice.retrieval.evaluation.measures import Measure
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.evaluation.significance import paired_bootstrap
from sluice.retrieval.pipelines.operators import Then
from sluice.retrieval.pipelines.rerank import Rerank
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Run

FEWEST = 5  # queries from which anything follows


class Sample(NamedTuple):
    """Judged queries to fit on; ``run`` is of a stage, the run it is given, and a depth."""

    queries: Queries
    qrels: Qrels
    run: Callable[..., Run]


class Unfitted(Stage):
    """A stage that cannot run before its settings are chosen on judged queries.

    ``queries`` bounds how many of these are used, ``most_queries`` unless given.
    """

    measure: str
    queries: int | None
    most_queries: int
    leaves = frozenset[str]()  # some of its parts may be left out

    @abstractmethod
    def fit(self, sample: Sample, measure: Measure, first: Stage | None) -> QueryFit:
        """Return the settings that the judged queries support, ``first`` being the stage before."""

    @abstractmethod
    def unjudged(self, measure: Measure, reason: str, first: Stage | None) -> QueryFit:
        """Return the settings that are taken where nothing can be fitted."""

    @abstractmethod
    def closed(self, fit: QueryFit) -> Stage | None:
        """Return the stage with the settings of a fit, None if that is of another kind of stage."""

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Raise ``ConfigError``."""
        raise ConfigError(
            f"{self.name}: is not fitted, so it cannot run; an experiment fits it under pipelines: "
            "(sluice run), in Python fit_on(stage, queries, qrels) does, and `sluice fit` writes "
            "files for fitted="
        )


class Fitter(Protocol):
    """Chooses the settings of one open stage."""

    def fit(self, stage: Unfitted, first: Stage | None) -> Stage:
        """Return the stage with settings; ``first`` gives a reranker its candidates."""
        ...


def is_open(stage: Stage) -> bool:
    """Return whether the stage, or one it is made of, is not fitted yet."""
    return isinstance(stage, Unfitted) or any(map(is_open, stage.inner))


def fit_open(stage: Stage, fitter: Fitter, first: Stage | None = None) -> Stage:
    """Return the stage with everything that is open in it fitted, inner stages before outer ones.

    A reranker fitted to depth 0 is left out. ``ConfigError`` for one inside a stage that cannot be
    made of others, such as a scorer's own retrievers.
    """
    closed = _fitted(stage, fitter, first)
    if is_open(closed):
        raise ConfigError(
            f"{stage.name}: fitted(...) stands where it cannot be replaced; make it a pipeline of "
            "its own and use its name here"
        )
    return closed


def _fitted(stage: Stage, fitter: Fitter, first: Stage | None) -> Stage:
    if not is_open(stage):
        return stage
    if isinstance(stage, Then):
        start = _fitted(stage.first, fitter, first)
        before = first >> start if first is not None and start.needs_candidates else start
        second = _fitted(stage.second, fitter, before)
        second.check_first(before)
        return start if isinstance(second, Rerank) and second.depth == 0 else Then(start, second)
    parts = [_fitted(part, fitter, first) for part in stage.inner]
    own = stage.over(parts) if parts else stage
    return fitter.fit(own, first) if isinstance(own, Unfitted) else own


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


class Settings:
    """The settings of a stage that may be chosen, and how well judged queries do with each.

    ``values`` ``[settings, queries]`` has the measure, settings in groups of the same ``points``
    ``[n, axes]``: near ones do about as well. Of a group one is found by smoothed bagging. The
    ``safe`` places of each group are taken instead where their mean is higher; of equal means (to
    nine digits) the earliest is taken, of bagging first. With ``or_none`` there is one group, after
    a first setting that changes nothing. That one is taken unless the other is more than one
    standard error better, and better too on queries that were not used for the choice.
    """

    def __init__(
        self, values: Array, points: Array, *, safe: Sequence[int] = (), or_none: bool = False
    ) -> None:
        self.values, self.points, self.or_none = values, points, or_none
        self._smoothing = kernel(points)
        self._starts = range(int(or_none), len(values), len(points))
        self._safe = [start + place for start in self._starts for place in safe]

    def choose(self, values: Array) -> int:
        """Return the place of the setting that the queries of ``values`` support."""
        size = len(self.points)
        places = [
            start + bagged(values[start : start + size], self.points, self._smoothing)
            for start in self._starts
        ]
        if self.or_none:
            return places[0] if supported(values[places[0]] - values[0]) else 0
        places += self._safe
        means = np.round(values[places].mean(axis=1), 9)
        return places[int(means.argmax())]

    def chosen(self) -> tuple[int, Array | None]:
        """Return the place of the setting to take, and what ``held_out`` returns."""
        held = held_out(self.values, self.choose)
        place = self.choose(self.values)
        if self.or_none and (held is None or held.mean() <= self.values[0].mean()):
            place = 0
        return place, held


class QueryFit(FittedFile, ABC):
    """The settings of a stage that judged queries support, and what is known of the choice."""

    __slots__ = ()

    measure: str
    value: float | None
    held_out: float | None
    queries: int
    gain: Gain | None
    why: str
    judged: bool
    parts: tuple[str, ...]
    origin: Mapping[str, Any]

    @property
    @abstractmethod
    def shown(self) -> str:
        """The choice in a few words."""

    def with_origin(self, origin: Mapping[str, Any]) -> Self:
        """Return the fit with where it was made."""
        return self._with(origin=dict(origin))

    def explained(self, choice: str, others: Mapping[str, float]) -> Self:
        """Return the fit with a sentence: what was chosen, and how it compares with ``others``."""
        held = {} if self.held_out is None else {"held out": self.held_out}
        values = ", ".join(f"{name} {value:.4f}" for name, value in {**held, **others}.items())
        queries = plural(self.queries, "judged query")
        why = f"{choice} on {queries}: {self.measure} {self.value:.4f} ({values})"
        return self._with(why=why)

    def _with(self, **changes: Any) -> Self:
        return replace(self, **changes)

    @classmethod
    def _parsed(cls, values: dict[str, Any]) -> dict[str, Any]:
        gain = values.get("gain")
        parts = tuple(values.get("parts", ()))
        return {**values, "parts": parts, "gain": None if gain is None else Gain(*gain)}


def judged_queries(qrels: Qrels, runs: Iterable[Run], name: str) -> Qrels:
    """Return the judgements without empty ones; ``DataError`` if no run has any of the queries."""
    judged = {query: grades for query, grades in qrels.items() if grades}
    if not any(query in run for run in runs for query in judged):
        raise DataError(f"{name}: no query of the runs has judgements; are the ids the same?")
    return judged


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


def supported(differences: Array) -> bool:
    """Return whether the mean difference is more than one standard error above 0."""
    count = len(differences)
    if count < 2:
        return False
    mean, error = differences.mean(), differences.std(ddof=1) / np.sqrt(count)
    return bool(mean > 0 and mean > error)
