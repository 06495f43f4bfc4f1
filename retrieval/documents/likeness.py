"""How alike texts are: MinHash sketches, and orders without repetition."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.bounded_input import same_text_key

HASHES: Final = 128  # of a sketch: the likeness it estimates is right to about .04
MISSED: Final = 0.001  # of pairs just alike enough, how many ``repeated`` may not compare
NEVER: Final = np.uint32(0xFFFFFFFF)  # the sketch of a text without words

# Each letter of a script without spaces is a word: from there on (as in ``serving``), all others.
_WORD: Final = re.compile(r"[\u2e80-\U0003ffff]|[^\W\u2e80-\U0003ffff]+")
_DRAW: Final = np.random.default_rng(20_261_128)
_TIMES: Final = _DRAW.integers(1, 2**63, HASHES, np.uint64) * np.uint64(2) + np.uint64(1)
_PLUS: Final = _DRAW.integers(0, 2**63, HASHES, np.uint64)

Hashes = NDArray[np.uint32]


def word_hashes(text: str) -> Hashes:
    """Return the distinct words of a text as sorted hashes; case does not count."""
    own = _WORD.findall(same_text_key(text))
    return np.unique(np.array([crc32(word.encode()) for word in own], np.uint32))


def sketch(hashes: Hashes) -> Hashes:
    """Return the MinHash sketch of a set of hashes, ``[HASHES]`` (Broder, 1997).

    The share of equal places of two sketches estimates the sets' Jaccard similarity.
    """
    least = np.full(HASHES, NEVER)
    mixed = hashes.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for start in range(0, len(hashes), 4_096):
        part = mixed[start : start + 4_096, None]
        own = ((part ^ (part >> np.uint64(29))) * _TIMES + _PLUS) >> np.uint64(32)
        least = np.minimum(least, own.min(axis=0).astype(np.uint32))
    return least


def text_likeness(texts: Sequence[str]) -> NDArray[np.float64]:
    """Return how alike texts are, 0 to 1, ``[n, n]``: the estimated Jaccard of their words."""
    sketches = np.array([sketch(word_hashes(text)) for text in texts]).reshape(-1, HASHES)
    rows = [(sketches == each).mean(axis=1) for each in sketches]
    return np.array(rows, np.float64).reshape(len(texts), len(texts))


def repeated(sketches: Sequence[Hashes], least: float) -> list[Repeated]:
    """Return the texts whose sketch is ``least`` like that of an earlier one that stays.

    Compared are sketches that agree in a whole band; bands are so wide that a pair of likeness
    ``least`` is missed once in a thousand times at most (Leskovec et al., Mining of Massive
    Datasets, section 3.4). Time grows with the texts and the pairs that share a band.
    """
    rows = np.array(sketches, np.uint32).reshape(-1, HASHES)
    width = next(w for w in (8, 4, 2, 1) if w == 1 or (1 - least**w) ** (HASHES // w) <= MISSED)
    shared = np.full((len(rows), HASHES // width), -1, np.int64)  # number of the band's bucket
    for band in range(HASHES // width):
        columns = slice(band * width, (band + 1) * width)
        keys = (rows[:, columns] * _TIMES[columns]).sum(axis=1, dtype=np.uint64)
        _, bucket, sizes = np.unique(keys, return_inverse=True, return_counts=True)
        several = sizes[bucket] > 1
        shared[several, band] = bucket[several] + band * len(rows)
    kept, dropped = dict[int, list[int]](), list[Repeated]()  # kept: the texts of a bucket
    for place in np.flatnonzero((shared >= 0).any(axis=1)).tolist():
        buckets = shared[place][shared[place] >= 0].tolist()
        others = sorted({other for bucket in buckets for other in kept.get(bucket, ())})
        alike = (rows[others] == rows[place]).mean(axis=1)
        if others and alike.max() >= least:
            nearest = int(alike.argmax())
            dropped.append(Repeated(place, others[nearest], float(alike[nearest])))
            continue
        for bucket in buckets:
            kept.setdefault(bucket, []).append(place)
    return dropped


def cosines(vectors: Any) -> NDArray[np.float64]:
    """Return the cosines ``[n, n]`` of vectors, dense or sparse; 0 with a vector of length 0."""
    own = vectors.astype(np.float64)
    products = own @ own.T
    products = products if isinstance(products, np.ndarray) else products.toarray()
    lengths = np.sqrt(np.diagonal(products))
    scale = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    found: NDArray[np.float64] = products * scale[:, None] * scale
    return found


class Repeated(NamedTuple):
    """The place of a text, that of a better one it repeats, and how alike they are."""

    place: int
    of: int
    likeness: float


class Varied(NamedTuple):
    """Places in their new order with the worth of each there, and what was dropped."""

    places: list[int]
    worths: list[float]
    dropped: list[Repeated]


def varied(
    scores: NDArray[Any], alike: NDArray[np.float64], weight: float, duplicates: float
) -> Varied:
    """Order candidates by relevance and novelty; scores and places are best first.

    A candidate that is at least ``duplicates`` like a better one is dropped. The next of the others
    is the one of the largest ``weight * relevance - (1 - weight) * likeness`` to the most similar
    one before it (maximal marginal relevance; Carbonell and Goldstein, 1998), where relevance is
    the score from 0, the lowest here, to 1. Ties are the earlier candidate's.
    """
    kept, dropped = list[int](), list[Repeated]()
    for place in range(len(scores)):
        nearest = max(kept, key=lambda each: alike[place, each], default=None)
        if nearest is not None and alike[place, nearest] >= duplicates:
            dropped.append(Repeated(place, nearest, float(alike[place, nearest])))
        else:
            kept.append(place)
    relevance = _spread(np.asarray(scores, np.float64)[kept])
    closest, left = np.zeros(len(kept)), np.ones(len(kept), np.bool_)
    places, worths = list[int](), list[float]()
    for _ in kept:
        gains = np.where(left, weight * relevance - (1 - weight) * closest, -np.inf)
        best = int(np.argmax(gains))
        places.append(kept[best])
        worths.append(float(gains[best]))
        left[best] = False
        closest = np.maximum(closest, alike[kept, kept[best]])
    return Varied(places, worths, dropped)


def _spread(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    if not len(scores) or scores.max() == scores.min():
        return np.ones(len(scores))
    spread: NDArray[np.float64] = (scores - scores.min()) / (scores.max() - scores.min())
    return spread
