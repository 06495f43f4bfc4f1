"""Normalisations of the scores of a list, so that those of several systems can be added."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.retrieval.runs.pool import Array, Lists


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


def _unchanged(lists: Lists, minimum: float | None) -> Shares:
    return Shares(lists.scores, lists.lowest())


NORMALISATIONS: Final[Mapping[str, Callable[[Lists, float | None], Shares]]] = {
    "min-max": _min_max,
    "z-score": _z_score,
    "theoretical-min": _theoretical_min,
    "pyserini": _pyserini,
    "none": _unchanged,
}


def check_normalisation(name: object) -> None:
    """Raise ``ConfigError`` for a name that none has."""
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
    the least score there can be, ``none`` s itself. A document missing in a list gets what the
    list's lowest gets, and nothing where the list is empty. In a list of equal scores being found
    counts all the same: ``min-max`` gives 1 to the found and 0 to the missing, ``pyserini`` 1/2
    and -1/2, ``theoretical-min`` 0 to the missing; ``z-score`` gives 0 to both.
    """
    check_normalisation(normalise)
    return NORMALISATIONS[normalise](lists, minimum)
