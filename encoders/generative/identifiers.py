"""The identifiers of documents: which tokens each one is, learnt and new."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import read_json, write_json
from sluice.encoders.foundation.errors import DataError, ModelError
from sluice.encoders.foundation.tokens import LARGEST_TOKEN

ROUNDS = 20  # of k-means at most


def paths(vectors: NDArray[np.float32], branches: int, seed: int) -> list[tuple[int, ...]]:
    """Return each vector's digits, from 0 to below ``branches``, and no two the same.

    All vectors are split into ``branches`` clusters, and each cluster of more than ``branches``
    again: a digit for each level, and a last one that counts within the smallest cluster.
    (DSI; Tay et al. 2022, section 3.2, algorithm 1.)
    """
    digits: list[tuple[int, ...]] = [()] * len(vectors)
    chance = np.random.default_rng(seed)
    waiting = [np.arange(len(vectors))]
    while waiting:
        rows = waiting.pop()
        if len(rows) <= branches:
            labels = np.arange(len(rows))
        else:
            labels = k_means(vectors[rows], branches, chance)
            if np.bincount(labels).max() == len(rows):  # all alike: dealt out
                labels = np.arange(len(rows)) % branches
            waiting += [rows[labels == label] for label in np.unique(labels)]
        for row, label in zip(rows.tolist(), labels.tolist(), strict=True):
            digits[row] = (*digits[row], label)
    return digits


def k_means(
    vectors: NDArray[np.float32], clusters: int, chance: np.random.Generator
) -> NDArray[np.intp]:
    """Return the cluster of each vector, after Lloyd's algorithm from k-means++ seeds.

    Of clusters that get empty there are fewer. (Arthur and Vassilvitskii 2007, section 2.2.)
    """
    points = np.asarray(vectors, np.float64)
    centroids = points[chance.integers(len(points))][None]
    nearest = ((points - centroids[0]) ** 2).sum(axis=1)
    while len(centroids) < clusters and nearest.sum() > 0:
        drawn = int(chance.choice(len(points), p=nearest / nearest.sum()))
        centroids = np.vstack([centroids, points[drawn]])
        nearest = np.minimum(nearest, ((points - points[drawn]) ** 2).sum(axis=1))
    labels = np.full(len(points), -1)
    for _ in range(ROUNDS):
        distances = (centroids**2).sum(axis=1) - 2 * points @ centroids.T
        before, labels = labels, distances.argmin(axis=1)
        if (labels == before).all():
            break
        used = np.unique(labels)
        centroids = np.stack([points[labels == label].mean(axis=0) for label in used])
        labels = np.searchsorted(used, labels)
    return labels


Kind: TypeAlias = Literal["atomic", "semantic", "string", "title"]
KINDS: Final = get_args(Kind)
Code: TypeAlias = tuple[int, ...]
FILE: Final = "identifiers.json"
FREE: Final = LARGEST_TOKEN // 2  # from here on tokens tell new documents apart


class Places:
    """The clusters of learnt documents as an index that a decoder walks: their paths alone."""

    def __init__(self, paths: Iterable[Code]) -> None:
        self._root = Place({})
        for path in paths:
            place = self._root
            for token in path:
                place = place.below.setdefault(token, Place({}))

    def prefix(self, ngram: Sequence[int] = ()) -> Place:
        """Return the root; only that one is asked for."""
        return self._root

    def extended(self, node: Place, token: int) -> Place:
        """Return the place one token further."""
        return node.below[token]

    def continuations(self, node: Place) -> Digits:
        """Return the tokens that follow a place."""
        return Digits(np.array(sorted(node.below), np.int32), np.ones(len(node.below), np.int64))


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster, or one of clusters: what is below it by the next token."""

    below: dict[int, Place]

    @property
    def complete(self) -> bool:
        """Whether no cluster is below."""
        return not self.below

    @property
    def count(self) -> int:
        """The number of places one token further."""
        return len(self.below)


class Digits(NamedTuple):
    """Tokens, ascending, and the number of each."""

    tokens: Any
    counts: Any


def clusters(codes: Iterable[Code]) -> list[Code]:
    """Return the paths of the smallest clusters: codes without their number in it and the end.

    Numbers of several digits do not make clusters: no path begins with another one.
    """
    found: list[Code] = []
    for path in sorted({code[:-2] for code in codes}):
        if not found or path[: len(found[-1])] != found[-1]:
            found.append(path)
    return found


def free_tokens(document_id: str) -> Code:
    """Return the tokens that tell a new document apart from others of its cluster."""
    digest = hashlib.blake2b(document_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    numbers = (int.from_bytes(digest[at : at + 8], "little") for at in range(0, 16, 8))
    return tuple(FREE + number % (LARGEST_TOKEN - FREE) for number in numbers)


def next_number(path: Code, taken: set[Code], digit: Callable[[int], int], base: int) -> Code:
    """Return the first code in a cluster, without the end, that is not taken."""
    number = 0
    while True:
        digits = [number % base]
        while number >= base ** len(digits):
            digits.append(number // base ** len(digits) % base)
        code = (*path, *map(digit, reversed(digits)))
        if code not in taken:
            return code
        number += 1


def check_apart(codes: Mapping[str, Code], ids: str) -> None:
    """Raise ``DataError`` where two documents have the same identifier."""
    owners: dict[Code, str] = {}
    for name, code in codes.items():
        if code in owners:
            raise DataError(
                f"documents {owners[code]!r} and {name!r} have the same identifier with ids: "
                f"{ids}; give each one of its own, or take ids: semantic"
            )
        owners[code] = name


def write_codes(folder: Path, codes: Mapping[str, Code]) -> None:
    """Write the identifiers that a model has learnt beside it."""
    write_json(folder / FILE, {"documents": [*codes], "codes": [list(c) for c in codes.values()]})


def read_codes(folder: Path, vocabulary: int) -> dict[str, Code]:
    """Return the identifiers beside a model, none without a file.

    ``ModelError`` for a file that does not fit the model.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        noted = read_json(path)
        names, codes = noted["documents"], [tuple(code) for code in noted["codes"]]
        whole = all(type(token) is int for code in codes for token in code)
        fits = whole and all(0 <= token < vocabulary for code in codes for token in code)
        fits = fits and all(codes) and all(type(name) is str for name in names)
        fits = fits and len(names) == len(codes) == len(set(names)) == len(set(codes))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: not the identifiers of a model ({error}); train again") from None
    if not fits:
        raise ModelError(
            f"{path}: expected a document and its tokens below {vocabulary:,}, each once; train "
            "the model again"
        )
    return dict(zip(names, codes, strict=True))


def codes_hash(codes: Mapping[str, Code]) -> str:
    """Return a hash of all identifiers."""
    text = json.dumps(sorted(codes.items()), separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
