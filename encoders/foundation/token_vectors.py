"""Several vectors a text, one for each of its tokens, of many texts end to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError

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
