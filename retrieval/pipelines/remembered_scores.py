"""Looks scores up in a memory, and scores each missing pair once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Key = TypeVar("Key", bound=Hashable)
Scores = NDArray[np.float32]  # [keys], NaN where unknown


class Lookup(NamedTuple):
    """The scores of the keys, and how many of them had to be computed."""

    scores: Scores
    misses: int


def remembered(
    keys: Sequence[Key],
    get: Callable[[Sequence[Key]], Scores],
    score: Callable[[list[int]], Scores],
    put: Callable[[list[Key], Scores], None],
    *,
    block: int | None = None,
) -> Lookup:
    """Return one score per key; those that ``get`` does not know are scored and ``put``.

    ``score`` takes places in ``keys``, never two of the same key. Each ``block`` is put before the
    next is scored, so that a kill costs one block; without ``block`` all are scored at once.
    """
    scores = get(keys)
    missing = np.flatnonzero(np.isnan(scores)).tolist()
    first: dict[Key, int] = {}
    for place in missing:
        first.setdefault(keys[place], place)
    places = list(first.values())
    known: dict[Key, float] = {}
    size = block or max(1, len(places))
    for start in range(0, len(places), size):
        part = places[start : start + size]
        names, values = [keys[place] for place in part], score(part)
        put(names, values)
        known.update(zip(names, values.tolist(), strict=True))
    scores[missing] = [known[keys[place]] for place in missing]
    return Lookup(scores, len(places))


class ScoreMemory(dict[Key, float]):
    """Scores in memory, as ``get`` and ``put`` of ``remembered``."""

    def found(self, keys: Sequence[Key]) -> Scores:
        """Return the score of each key, NaN where it is not known."""
        return np.array([self.get(key, np.nan) for key in keys], np.float32)

    def add(self, keys: Sequence[Key], scores: Scores) -> None:
        """Keep the scores of keys."""
        self.update(zip(keys, scores.tolist(), strict=True))
