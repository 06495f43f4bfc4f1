"""Fuses runs: by ranks, by normalised scores, and by how many runs found a document.

A method is one entry of ``METHODS``; ``Fusion`` holds its options, which stages, expressions and
fits share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import is_number
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.runs.several_runs import Array, Lists, Pool

STEEP_RANKS = 100
FLATTEST = 0.05  # the least steepness: what a list found always counts more than what it did not


class Shares(NamedTuple):
    """What a run gives: to each of its hits ``[hits]``, to what it did not find ``[queries]``."""

    found: Array
    missing: Array


def _min_max(lists: Lists, minimum: float | None) -> Shares:
    lowest, highest = lists.lowest(), lists.highest()
    width = highest - lowest
    scaled = (lists.scores - lists.each(lowest)) / lists.each(np.where(width > 0, width, 1.0))
    found = np.where(lists.each(width) > 0, scaled, 1.0)
    return Shares(found, np.zeros(len(width)))


def _pyserini(lists: Lists, minimum: float | None) -> Shares:
    found, missing = _min_max(lists, minimum)
    return Shares(found - 0.5, np.where(lists.lengths > 0, missing - 0.5, 0.0))


def _z_score(lists: Lists, minimum: float | None) -> Shares:
    centred = lists.scores - lists.each(lists.mean(lists.scores))
    varied = lists.highest() > lists.lowest()
    deviation = np.where(varied, np.sqrt(lists.mean(centred**2)), 1.0)
    found = np.where(lists.each(varied), centred / lists.each(deviation), 0.0)
    return Shares(found, Lists(found, lists.lengths, lists.places).lowest())


def _theoretical_min(lists: Lists, minimum: float | None) -> Shares:
    if minimum is None:
        raise ConfigError(
            "normalise='theoretical-min' needs minimum=: the least score there can be, such as 0 "
            "for BM25 and SPLADE, -1 for cosine; a number, or one for each list"
        )
    lowest, highest = lists.lowest(), lists.highest()
    full = lists.lengths > 0
    if (highest[full] < minimum).any():
        raise DataError(
            f"normalise='theoretical-min': a list's best score is {highest[full].min():.6g}, below "
            f"minimum={minimum:g}; give the least score that there can be"
        )
    width = np.where(full & (highest > minimum), highest - minimum, 1.0)
    found = (lists.scores - minimum) / lists.each(width)
    missing = np.where(full & (highest > lowest), (lowest - minimum) / width, 0.0)
    return Shares(found, missing)


def _steep(lists: Lists, minimum: float | None) -> Shares:
    found, missing = _min_max(lists, minimum)
    near = (lists.ranks > 1) & (lists.ranks <= STEEP_RANKS)
    sums = lists.mean(np.where(near, found, 0.0)) * lists.lengths
    below = sums / np.clip(lists.lengths - 1, 1, STEEP_RANKS - 1)
    return Shares(found * lists.each(np.maximum(1.0 - below, FLATTEST) ** 2), missing)


def _unchanged(lists: Lists, minimum: float | None) -> Shares:
    return Shares(lists.scores, lists.lowest())


NORMALISATIONS: Final[Mapping[str, Callable[[Lists, float | None], Shares]]] = {
    "min-max": _min_max,
    "z-score": _z_score,
    "theoretical-min": _theoretical_min,
    "pyserini": _pyserini,
    "steep": _steep,
    "none": _unchanged,
}


def check_normalisation(name: object) -> None:
    """Raise ``ConfigError`` for an unknown name."""
    if not isinstance(name, str) or name not in NORMALISATIONS:
        raise ConfigError(
            f"unknown normalisation {name!r}; known: {', '.join(NORMALISATIONS)}"
            f"{suggest(str(name), NORMALISATIONS)}"
        )


def normalised_shares(lists: Lists, normalise: str, minimum: float | None = None) -> Shares:
    """Return the normalised scores of a run's lists, each list by itself.

    With l and h the lowest and highest score of the list, m its mean and d its deviation:
    ``min-max`` is (s - l) / (h - l), ``z-score`` (s - m) / d, ``pyserini`` (s - (l + h) / 2) /
    (h - l), ``theoretical-min`` (s - minimum) / (h - minimum) (Bruch, Gai and Ingber, 2023) with
    the least score there can be, ``none`` s itself. ``steep`` is ``min-max`` times the square of
    the list's steepness, 1 less the mean of ranks 2 to ``STEEP_RANKS`` by ``min-max``: a list whose
    first documents stand out counts more, query by query. A document missing in a list gets what
    the list's lowest gets, and nothing where the list is empty. In a list of equal scores being
    found counts all the same: ``min-max`` gives 1 to the found and 0 to the missing, ``pyserini``
    1/2 and -1/2, ``theoretical-min`` 0 to the missing, ``steep`` next to nothing; ``z-score``
    gives 0 to both.
    """
    check_normalisation(normalise)
    return NORMALISATIONS[normalise](lists, minimum)


class Method(NamedTuple):
    """A method that adds up what each run gives: ``shares`` of a run's lists, times its weight.

    With ``multiplied`` the sum is multiplied by the number of runs that found the document.
    ``grid`` are the options that ``fit_fusion`` tries.
    """

    shares: Callable[[Lists, Fusion, float | None], Shares]
    multiplied: bool = False
    grid: Sequence[Mapping[str, Any]] = ({},)


def _reciprocal_rank(lists: Lists, fusion: Fusion, minimum: float | None) -> Shares:
    return Shares(1.0 / (fusion.rank_constant + lists.ranks), np.zeros(len(lists.lengths)))


def _rank_biased(lists: Lists, fusion: Fusion, minimum: float | None) -> Shares:
    weights = (1.0 - fusion.phi) * fusion.phi ** (lists.ranks - 1.0)
    return Shares(weights, np.zeros(len(lists.lengths)))


def _normalised(lists: Lists, fusion: Fusion, minimum: float | None) -> Shares:
    return normalised_shares(lists, fusion.normalise, minimum)


def _found(lists: Lists, fusion: Fusion, minimum: float | None) -> Shares:
    shares = normalised_shares(lists, fusion.normalise, minimum)
    return Shares(shares.found, np.zeros(len(lists.lengths)))


_BY_SCORE = tuple({"normalise": name} for name in ("steep", "z-score"))

METHODS: Final[Mapping[str, Method]] = {
    "rrf": Method(_reciprocal_rank, grid=tuple({"rank_constant": c} for c in (2, 10, 60))),
    "weighted": Method(_normalised, grid=_BY_SCORE),
    "rank_biased": Method(_rank_biased, grid=tuple({"phi": phi} for phi in (0.8, 0.9, 0.95, 0.98))),
    "comb_sum": Method(_found, grid=({"normalise": "min-max"},)),
    "comb_mnz": Method(_found, multiplied=True, grid=({"normalise": "min-max"},)),
}


@dataclass(frozen=True, slots=True)
class Fusion:
    """A way to make one run of several, with all its options.

    Ours, all a sum over the runs of weight x share: ``rrf`` 1 / (rank_constant + rank) (Cormack,
    Clarke and Buettcher, 2009); ``weighted`` the normalised score, a missing document as the list's
    lowest; ``rank_biased`` (1 - phi) phi^(rank - 1) (Bailey et al., 2017); ``comb_sum`` the
    normalised score, nothing for a missing document; ``comb_mnz`` that, times the number of runs
    that found it (Fox and Shaw, 1994). The others are ranx's, see ``ranx_fusion``. ``minimum`` is
    for ``theoretical-min``: a number, or one for each run. Raises ``ConfigError`` for a value no
    method could use, and for weights with a method that takes none.
    """

    method: str = "rrf"
    weights: Sequence[float] | None = None
    normalise: str = "min-max"
    minimum: float | Sequence[float | None] | None = None
    rank_constant: float = 60
    phi: float = 0.8
    gamma: float = 0.5
    sigma: float = 0.01

    def __post_init__(self) -> None:
        from sluice.retrieval.pipelines.fusion.search import RANX

        known = (*METHODS, *RANX)
        if not isinstance(self.method, str) or self.method not in known:
            near = suggest(str(self.method), known)
            raise ConfigError(f"fusion {self.method!r}; known: {', '.join(known)}{near}")
        try:
            check_normalisation(self.normalise)
        except ConfigError as error:
            raise ConfigError(f"fusion: normalise={self.normalise!r}; {error}") from None
        _check(self.rank_constant, "rank_constant", "0 or more", lambda value: value >= 0)
        _check(self.phi, "phi", "a share between 0 and 1", lambda value: 0 < value < 1)
        _check(self.gamma, "gamma", "0 or more", lambda value: value >= 0)
        _check(self.sigma, "sigma", "a share from 0 to 1", lambda value: 0 <= value <= 1)
        minima = self.minimum if isinstance(self.minimum, (list, tuple)) else (self.minimum,)
        for value in minima:
            if value is not None:
                _check(value, "minimum", "a number, or one for each run", lambda _: True)
        if isinstance(self.minimum, (list, tuple)):
            object.__setattr__(self, "minimum", tuple(self.minimum))
        weights = self.weights
        if weights is None:
            return
        if not (
            isinstance(weights, (list, tuple))
            and all(is_number(weight) and weight >= 0 for weight in weights)
            and any(weights)
        ):
            raise ConfigError(
                f"fusion: weights={weights!r}; expected a list of numbers, 0 or more, not all of "
                "them 0"
            )
        if self.method in RANX and not RANX[self.method].weighted:
            raise ConfigError(f"fusion: {self.method} takes no weights")
        object.__setattr__(self, "weights", tuple(map(float, weights)))

    def fuse(self, runs: Sequence[Run]) -> Run:
        """Fuse runs query by query, in order of appearance; scores are float32, ties by id.

        A run of weight 0 is left out, so that its documents do not enter; a query's empty list
        adds nothing. Ranks are the runs' own orders, whatever their scores. ``ConfigError`` for no
        runs and unless there is one weight, and one minimum, for each.
        """
        used = self.used(len(runs))
        name = f"{self.method}({', '.join(runs[place].name for place in used)})"
        if self.method not in METHODS:
            from sluice.retrieval.pipelines.fusion.search import ranx_fusion

            return ranx_fusion(self, runs, name=name)
        kept = [runs[place] for place in used]
        weights = [self.weight(place) for place in used]
        minima = [self.minimum_of(place) for place in used]
        rankings: dict[str, Ranking] = {}
        for pool in Pool.blocks(kept):
            columns = [
                pool.spread(lists, weight * shares.found, weight * shares.missing)
                for lists, weight, shares in zip(
                    pool.lists, weights, map(self.shares, pool.lists, minima), strict=True
                )
            ]
            rankings.update(pool.ranked(self.total(pool, columns)))
        return Run(rankings, name=name)

    def shares(self, lists: Lists, minimum: float | None) -> Shares:
        """Return what a run gives to its documents, at weight 1."""
        return METHODS[self.method].shares(lists, self, minimum)

    def total(self, pool: Pool, columns: Sequence[Array]) -> Array:
        """Add up what the pool's runs give, run by run in float64."""
        sums = np.zeros(len(pool.at))
        for column in columns:
            sums += column
        if METHODS[self.method].multiplied:
            sums *= sum(pool.spread(lists, np.ones(len(lists.scores))) for lists in pool.lists)
        return sums

    def used(self, runs: int) -> list[int]:
        """Return the places of the runs that are fused, after checking their number."""
        if not runs:
            raise ConfigError("fusion: no runs to fuse; expected one or more")
        if self.weights is not None and len(self.weights) != runs:
            raise ConfigError(f"fusion: {len(self.weights)} weights for {runs} runs")
        if isinstance(self.minimum, (list, tuple)) and len(self.minimum) != runs:
            raise ConfigError(f"fusion: {len(self.minimum)} values of minimum for {runs} runs")
        return [place for place in range(runs) if self.weight(place) > 0]

    def weight(self, place: int) -> float:
        """Return the weight of a run, 1 unless given."""
        return 1.0 if self.weights is None else float(self.weights[place])

    def of_parts(self, places: Sequence[int]) -> Fusion:
        """Return the fusion of some of its runs, with their weights and minima."""
        minimum = self.minimum
        if isinstance(minimum, (list, tuple)):
            minimum = [minimum[place] for place in places]
        weights = self.weights
        if weights is not None:
            weights = [weights[place] for place in places]
        return replace(self, weights=weights, minimum=minimum)

    def minimum_of(self, place: int) -> float | None:
        """Return the least score that a run could give, None if it was not given."""
        found = self.minimum[place] if isinstance(self.minimum, (list, tuple)) else self.minimum
        return None if found is None else float(found)  # type: ignore[arg-type]


def _check(value: Any, name: str, expected: str, fits: Callable[[float], bool]) -> None:
    if not is_number(value) or not fits(value):
        raise ConfigError(f"fusion: {name}={value!r}; expected {expected}")


def reciprocal_rank_fusion(
    runs: Sequence[Run], k: float = 60, weights: Sequence[float] | None = None
) -> Run:
    """Fuse runs by the sum of weight / (k + rank), ranks from 1; see ``Fusion``."""
    given = None if weights is None else list(weights)
    return Fusion("rrf", rank_constant=k, weights=given).fuse(runs)
