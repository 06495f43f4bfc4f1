"""Several teachers as one: their scores made comparable query by query, weighted and scaled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.retrieval.config.component_types import ENSEMBLE
from sluice.training.negatives.judge import Judge, JudgedPair, judged

Scores = NDArray[np.float64]

SETTINGS: Final = ("teachers", "weights", "normalise", "scale")


class Teacher(Judge, Protocol):
    """A judge whose scores depend on the pairs alone; its fingerprint identifies it."""

    @property
    def fingerprint(self) -> str:
        """A hash that changes whenever a score would."""
        ...


def _min_max(scores: Scores) -> Scores:
    low, high = scores.min(), scores.max()
    return (scores - low) / (high - low) if high > low else np.zeros_like(scores)


def _z_score(scores: Scores) -> Scores:
    flat = scores.min() == scores.max()
    return np.zeros_like(scores) if flat else (scores - scores.mean()) / scores.std()


def _as_is(scores: Scores) -> Scores:
    return scores


NORMALISERS: Final[Mapping[str, Callable[[Scores], Scores]]] = {
    "min-max": _min_max,
    "z-score": _z_score,
    "none": _as_is,
}


class Mixture:
    """``scale * sum_k w_k n(s_k) / sum_k w_k``: how several teachers' scores become one.

    n is over the candidates of one query: ``min-max`` (s - l) / (h - l), ``z-score``
    (s - mean) / deviation, or ``none``; scores that are all the same become 0 by the former two.
    """

    def __init__(
        self,
        count: int,
        weights: Sequence[float] | None = None,
        normalise: str = "none",
        scale: float = 1.0,
        where: str = "teacher",
    ) -> None:
        self.weights = [1.0] * count if weights is None else list(map(float, weights))
        if not count or len(self.weights) != count:
            raise ConfigError(
                f"{where}.weights: {len(self.weights)} for {count} teachers; expected one each"
            )
        if not all(0 < weight < np.inf for weight in self.weights):
            raise ConfigError(f"{where}.weights: {self.weights}; expected finite numbers above 0")
        if normalise not in NORMALISERS:
            raise ConfigError(
                f"{where}.normalise: {normalise!r}; expected one of {', '.join(NORMALISERS)}"
                f"{suggest(str(normalise), NORMALISERS)}"
            )
        if not 0 < scale < np.inf:
            raise ConfigError(f"{where}.scale: {scale!r}; expected a finite number above 0")
        self.normalise = normalise
        self.scale = float(scale)

    def of_query(self, members: Sequence[Scores]) -> Scores:
        """Return ``[n]``: one query's scores from those of every member ``[n]``, without NaN."""
        normal = NORMALISERS[self.normalise]
        parts = zip(self.weights, members, strict=True)
        mixed: Scores = sum(
            (weight * normal(scores) for weight, scores in parts),
            start=np.zeros(len(members[0])),
        )
        return mixed * (self.scale / sum(self.weights))

    @property
    def facts(self) -> tuple[list[float], str, float]:
        """What decides the mixture, for fingerprints."""
        return self.weights, self.normalise, self.scale


class Ensemble:
    """Several teachers of any kind as one, see ``Mixture``.

    A pair that one of them has no score for gets none: a mean over the others would be on another
    scale. Unless ``normalise`` is ``none`` all pairs of a query must be scored together.
    """

    def __init__(
        self,
        teachers: Sequence[Teacher],
        weights: Sequence[float] | None = None,
        *,
        normalise: str = "none",
        scale: float = 1.0,
    ) -> None:
        self.mixture = Mixture(len(teachers), weights, normalise, scale)
        self.teachers = list(teachers)
        self.name = " + ".join(teacher.name for teacher in teachers)
        self.needs_texts = any(teacher.needs_texts for teacher in teachers)

    @property
    def fingerprint(self) -> str:
        """A hash of the members' fingerprints and of how they are mixed."""
        members = [teacher.fingerprint for teacher in self.teachers]
        return fingerprint_of(ENSEMBLE, members, *self.mixture.facts)

    def scores(self, pairs: Sequence[JudgedPair]) -> Scores:
        """Return the mixed scores, NaN where a member has none."""
        members = np.stack([judged(teacher, pairs) for teacher in self.teachers])
        known = np.isfinite(members).all(axis=0)
        places: dict[str, list[int]] = {}
        for place in np.flatnonzero(known).tolist():
            places.setdefault(pairs[place].query_id, []).append(place)
        mixed = np.full(len(pairs), np.nan)
        for own in places.values():
            mixed[own] = self.mixture.of_query(list(members[:, own]))
        return mixed
