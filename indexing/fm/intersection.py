"""Scores documents by the n-grams of a query that they contain, without counting words twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.token_vectors import Ngram


class Key(NamedTuple):
    """An n-gram of a query: its token ids and its weight, above 0."""

    ngram: tuple[int, ...]
    weight: float


class Part(NamedTuple):
    """What one n-gram adds to a document's score.

    ``term`` are its token ids, ``query_weight`` its weight and ``impact`` the same again, lowered
    for tokens that other n-grams had; ``contribution`` is their product.
    """

    term: tuple[int, ...]
    query_weight: float
    impact: float
    contribution: float


def ranked_keys(pairs: Sequence[tuple[Ngram, float]]) -> list[Key]:
    """Return the n-grams of weight above 0 as documents take them, each once, its best weight.

    Those of two tokens and more come before single tokens; then the heavier, the longer, and the
    one of lower ids.
    """
    best: dict[tuple[int, ...], float] = {}
    for ids, weight in pairs:
        ngram = tuple(int(token) for token in ids)
        if weight > best.get(ngram, 0.0):
            best[ngram] = float(weight)
    keys = [Key(ngram, weight) for ngram, weight in best.items()]
    keys.sort(key=lambda key: (len(key.ngram) == 1, -key.weight, -len(key.ngram), key.ngram))
    return keys


Grouped = Mapping[int, Sequence[int]]  # the places of n-grams by their first token


def by_first_token(keys: Sequence[Key]) -> Grouped:
    """Return the places in ``keys`` of the n-grams that begin with each token."""
    grouped: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        grouped.setdefault(key.ngram[0], []).append(place)
    return grouped


def document_parts(
    document: NDArray[np.int32], keys: Sequence[Key], grouped: Grouped, repeated: float
) -> list[Part]:
    """Return what each n-gram adds to a document's score, in the order of ``ranked_keys``.

    Each is taken at the first place where no taken one stands, or not at all. It adds
    ``weight**2 * (1 - repeated + repeated * new / all)``: of its different tokens, those that no
    taken one had. (SEAL; Bevilacqua et al. 2022, section 3.3, equations 3 and 4.)
    """
    tokens: list[int] = document.tolist()
    places: dict[int, list[int]] = {}
    for place, token in enumerate(tokens):
        places.setdefault(token, []).append(place)
    begun = sorted(at for token in places.keys() & grouped.keys() for at in grouped[token])
    taken = bytearray(len(tokens))
    covered: set[int] = set()
    parts = list[Part]()
    for ngram, weight in map(keys.__getitem__, begun):
        size = len(ngram)
        position = next(
            (
                place
                for place in places[ngram[0]]
                if not any(taken[place : place + size])
                and tuple(tokens[place : place + size]) == ngram
            ),
            None,
        )
        if position is None:
            continue
        own = set(ngram)
        impact = weight * (1 - repeated + repeated * len(own - covered) / len(own))
        parts.append(Part(ngram, weight, impact, weight * impact))
        taken[position : position + size] = b"\1" * size
        covered |= own
    return parts
