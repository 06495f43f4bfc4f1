"""Texts as their tokens, end to end: vectors, ids, n-grams of ids; and how many are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError


class TokenCounts(NamedTuple):
    """The tokens of texts, int32 ``[texts]``, special ones and prompts included.

    ``full`` are those that a text has, ``read`` those that the encoder's limit leaves. Of a pair of
    texts that is cut, ``full`` is one more than ``read``.
    """

    full: NDArray[np.int32]
    read: NDArray[np.int32]

    @classmethod
    def joined(cls, parts: Sequence[TokenCounts], texts: int) -> TokenCounts | None:
        """Return the counts of parts as one, None unless they are those of so many texts."""
        if sum(len(part.full) for part in parts) != texts:
            return None
        empty = np.zeros(0, np.int32)
        return cls(
            np.concatenate([empty, *(part.full for part in parts)]),
            np.concatenate([empty, *(part.read for part in parts)]),
        )


_COUNTS: ContextVar[list[TokenCounts] | None] = ContextVar("sluice_token_counts", default=None)


@contextmanager
def counting_tokens() -> Iterator[list[TokenCounts]]:
    """Collect the counts of the texts that are encoded inside the block, in their order.

    Encoders that report none leave the list empty.
    """
    counts: list[TokenCounts] = []
    token = _COUNTS.set(counts)
    try:
        yield counts
    finally:
        _COUNTS.reset(token)


def is_counting() -> bool:
    """Return whether anybody wants the counts: finding them costs a little."""
    return _COUNTS.get() is not None


def report_tokens(counts: TokenCounts | None) -> None:
    """Hand the counts of the next texts to the block that collects them, if there is one."""
    block = _COUNTS.get()
    if block is not None and counts is not None:
        block.append(counts)


LARGEST_TOKEN: Final = 2**24  # some arrays are as long as the vocabulary
LARGEST_WEIGHT: Final = 1e9  # its square, summed over n-grams, is far from the end of float32

Ids = NDArray[np.int32]
Ngram: TypeAlias = Sequence[int] | NDArray[np.integer]
_PRODUCTS = 1 << 22  # inner products at a time: 16 MB


class TokenVectors:
    """The token vectors of texts: ragged, so that a text of few tokens takes little room.

    ``values`` is float32 ``[tokens, dim]``, all texts end to end; ``bounds`` is int64 ``[n + 1]``:
    text i has the rows from ``bounds[i]`` to ``bounds[i + 1]``, possibly none. Neither is copied
    where the types fit, so a mapped file stays one. ``text(i)`` is ``[tokens, dim]``,
    ``rows([3, 1])`` and ``rows(slice(2, 9))`` are the ``TokenVectors`` of those texts, and so are
    ``vectors[[3, 1]]`` and ``vectors[2:9]``, as of a matrix.
    Raises ``DataError`` where the bounds do not fit the values.
    """

    __slots__ = ("bounds", "values")

    def __init__(self, values: NDArray[np.float32], bounds: NDArray[np.int64]) -> None:
        self.values = np.asarray(values, np.float32)
        self.bounds = np.asarray(bounds, np.int64)
        if self.values.ndim != 2:
            raise DataError(f"token vectors: shape {self.values.shape}; expected [tokens, dim]")
        ends = self.bounds
        if ends.ndim != 1 or not len(ends) or ends[0] or (np.diff(ends) < 0).any():
            raise DataError("token vectors: bounds must rise from 0, one more than there are texts")
        if ends[-1] != len(self.values):
            raise DataError(
                f"token vectors: bounds end at {ends[-1]:,}, there are {len(self.values):,} vectors"
            )

    @classmethod
    def of(cls, texts: Sequence[NDArray[np.float32]], dim: int) -> Self:
        """Return the vectors of texts given one array ``[tokens, dim]`` each."""
        bounds = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        filled = [np.asarray(each, np.float32) for each in texts if len(each)]
        return cls(np.concatenate(filled) if filled else np.zeros((0, dim), np.float32), bounds)

    @classmethod
    def joined(cls, parts: Sequence[TokenVectors], dim: int) -> Self:
        """Return the texts of all parts in one, in order."""
        lengths = [part.lengths for part in parts]
        bounds = np.concatenate([[0], *lengths]).cumsum(dtype=np.int64)
        filled = [part.values for part in parts if len(part.values)]
        return cls(np.concatenate(filled) if filled else np.zeros((0, dim), np.float32), bounds)

    @property
    def dim(self) -> int:
        """The width of a vector."""
        return int(self.values.shape[1])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each text, ``[n]``."""
        return np.diff(self.bounds)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of texts, and the width of a vector."""
        return len(self), self.dim

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        for start, end in zip(self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True):
            yield self.values[start:end]

    def __getitem__(self, rows: slice | NDArray[np.int64] | Sequence[int]) -> TokenVectors:
        return self.rows(rows)

    def text(self, row: int) -> NDArray[np.float32]:
        """Return the vectors of one text, ``[tokens, dim]``, as a view."""
        return self.values[int(self.bounds[row]) : int(self.bounds[row + 1])]

    def rows(self, rows: slice | NDArray[np.int64] | Sequence[int]) -> TokenVectors:
        """Return the texts of some rows, in their order; a slice of step 1 copies nothing."""
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                bounds = self.bounds[start : max(start, stop) + 1]
                return TokenVectors(self.values[bounds[0] : bounds[-1]], bounds - bounds[0])
            rows = np.arange(start, stop, step)
        wanted = np.asarray(rows, np.int64)
        starts, lengths = self.bounds[wanted], self.lengths[wanted]
        bounds = np.concatenate(([0], np.cumsum(lengths)))
        places = np.repeat(starts - bounds[:-1], lengths) + np.arange(bounds[-1])
        return TokenVectors(self.values[places], bounds)


def max_sim(queries: TokenVectors, documents: TokenVectors) -> NDArray[np.float32]:
    """Return the MaxSim of every query with every document, float32 ``[n, m]``.

    The sum over the query's tokens of the greatest inner product with a token of the document.
    (Khattab and Zaharia, 2020, ColBERT, equation 3.) A query without tokens has 0, a document
    without tokens minus infinity with all others. Raises ``DataError`` for different widths.
    """
    if queries.dim != documents.dim:
        raise DataError(
            f"max_sim: queries have {queries.dim} dimensions, documents {documents.dim}; expected "
            "vectors of one encoder"
        )
    scores = np.full((len(queries), len(documents)), -np.inf, np.float32)
    scores[queries.lengths == 0] = 0
    filled = np.flatnonzero(documents.lengths)
    for row, tokens in enumerate(queries):
        step = max(1, _PRODUCTS // max(1, len(tokens)))
        start = 0
        while len(tokens) and start < len(filled):  # documents of about ``step`` tokens at a time
            begin = documents.bounds[filled[start]]
            stop = int(np.searchsorted(documents.bounds[filled + 1], begin + step, "right"))
            part = filled[start : max(stop, start + 1)]
            end = documents.bounds[part[-1] + 1]
            products = documents.values[begin:end] @ tokens.T
            best = np.maximum.reduceat(products, documents.bounds[part] - begin)
            scores[row, part] = best.sum(axis=1)
            start += len(part)
    return scores


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
