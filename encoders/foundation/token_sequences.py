"""Texts as sequences of token ids, of many texts end to end, and queries as weighted n-grams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError

LARGEST_TOKEN: Final = 2**24  # some arrays are as long as the vocabulary
LARGEST_WEIGHT: Final = 1e9  # its square, summed over n-grams, is far from the end of float32

Ids = NDArray[np.int32]
Ngram: TypeAlias = Sequence[int] | NDArray[np.integer]


class TokenSequences:
    """The token ids of texts, ragged: text i has those from ``bounds[i]`` to ``bounds[i + 1]``.

    ``ids`` is int32 ``[tokens]``, ``bounds`` int64 ``[n + 1]``. ``DataError`` where the bounds do
    not fit, and for ids below 0 or above ``LARGEST_TOKEN``.
    """

    __slots__ = ("bounds", "ids")

    def __init__(self, ids: NDArray[np.integer], bounds: NDArray[np.int64]) -> None:
        given = np.asarray(ids)
        if given.ndim != 1 or (given.size and not np.issubdtype(given.dtype, np.integer)):
            raise DataError(
                f"token sequences: {given.dtype} of shape {given.shape}; expected token ids, one "
                "array of whole numbers"
            )
        if given.size and not 0 <= given.min() <= given.max() <= LARGEST_TOKEN:
            wrong = given.min() if given.min() < 0 else given.max()
            raise DataError(f"token sequences: id {wrong}, expected 0 to {LARGEST_TOKEN:,}")
        self.ids: Ids = given.astype(np.int32, copy=False)
        self.bounds = ends = np.asarray(bounds, np.int64)
        if ends.ndim != 1 or not len(ends) or ends[0] or (np.diff(ends) < 0).any():
            raise DataError("token sequences: bounds must rise from 0, one more than texts")
        if ends[-1] != len(self.ids):
            raise DataError(
                f"token sequences: bounds end at {ends[-1]:,}, there are {len(self.ids):,} ids"
            )

    @classmethod
    def of(cls, texts: Sequence[Ngram]) -> Self:
        """Return the sequences of texts given the ids of each."""
        bounds = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        filled = [np.asarray(each) for each in texts if len(each)]
        return cls(np.concatenate(filled) if filled else np.zeros(0, np.int32), bounds)

    @classmethod
    def joined(cls, parts: Sequence[TokenSequences]) -> Self:
        """Return the texts of all parts in one, in order."""
        bounds = np.concatenate([[0], *(part.lengths for part in parts)]).cumsum(dtype=np.int64)
        ids = [part.ids for part in parts]
        return cls(np.concatenate(ids) if ids else np.zeros(0, np.int32), bounds)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each text, ``[n]``."""
        return np.diff(self.bounds)

    @property
    def shape(self) -> tuple[int]:
        """The number of texts."""
        return (len(self),)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __iter__(self) -> Iterator[Ids]:
        for start, end in zip(self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True):
            yield self.ids[start:end]

    def __getitem__(self, rows: slice | NDArray[np.int64] | Sequence[int]) -> TokenSequences:
        """Return the texts of some rows, in their order; a slice of step 1 copies nothing."""
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                bounds = self.bounds[start : max(start, stop) + 1]
                return TokenSequences(self.ids[bounds[0] : bounds[-1]], bounds - bounds[0])
            rows = np.arange(start, stop, step)
        wanted = np.asarray(rows, np.int64)
        starts, lengths = self.bounds[wanted], self.lengths[wanted]
        bounds = np.concatenate(([0], np.cumsum(lengths)))
        places = np.repeat(starts - bounds[:-1], lengths) + np.arange(bounds[-1])
        return TokenSequences(self.ids[places], bounds)


class WeightedNgrams:
    """Queries as n-grams of token ids with a weight each, several a query.

    Query i has the n-grams from ``bounds[i]`` to ``bounds[i + 1]``; ``weights`` is float64, one for
    each n-gram, from 0 to ``LARGEST_WEIGHT``. ``DataError`` for others, and for an empty n-gram.
    """

    __slots__ = ("bounds", "ngrams", "weights")

    def __init__(
        self, ngrams: TokenSequences, weights: NDArray[np.float64], bounds: NDArray[np.int64]
    ) -> None:
        self.ngrams = ngrams
        self.weights = np.asarray(weights, np.float64)
        self.bounds = ends = np.asarray(bounds, np.int64)
        if ends.ndim != 1 or not len(ends) or ends[0] or (np.diff(ends) < 0).any():
            raise DataError("n-grams of queries: bounds must rise from 0, one more than queries")
        if not len(ngrams) == len(self.weights) == ends[-1]:
            raise DataError(
                f"n-grams of queries: {len(ngrams):,} n-grams, {len(self.weights):,} weights, and "
                f"bounds that end at {ends[-1]:,}; expected as many of each"
            )
        if not ngrams.lengths.all():
            raise DataError("n-grams of queries: one has no token; leave it out")
        if not ((self.weights >= 0) & (self.weights <= LARGEST_WEIGHT)).all():
            raise DataError(f"n-grams of queries: expected weights from 0 to {LARGEST_WEIGHT:g}")

    @classmethod
    def of(cls, queries: Sequence[Sequence[tuple[Ngram, float]]]) -> Self:
        """Return queries given the n-grams with their weights of each."""
        pairs = [pair for query in queries for pair in query]
        return cls(
            TokenSequences.of([ngram for ngram, _ in pairs]),
            np.array([weight for _, weight in pairs], np.float64),
            np.cumsum([0, *map(len, queries)], dtype=np.int64),
        )

    @property
    def shape(self) -> tuple[int]:
        """The number of queries."""
        return (len(self),)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, rows: slice | NDArray[np.int64] | Sequence[int]) -> WeightedNgrams:
        """Return some queries, in their order."""
        picked = np.arange(len(self))[rows]
        chosen = [self.query(row) for row in picked.tolist()]
        return WeightedNgrams.of(chosen)

    def query(self, row: int) -> list[tuple[Ids, float]]:
        """Return one query's n-grams with their weights."""
        start, stop = int(self.bounds[row]), int(self.bounds[row + 1])
        return list(zip(self.ngrams[start:stop], self.weights[start:stop].tolist(), strict=True))
