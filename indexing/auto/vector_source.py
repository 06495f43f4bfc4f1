"""Vectors of a corpus, read in chunks as often as needed, and sampled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from sluice.indexing.checks import Dense, checked_dense
from sluice.indexing.flat.index import FlatIndex
from sluice.indexing.hits import Hits
from sluice.indexing.live_rows import Rows
from sluice.indexing.storage.exact_scores import Metric

CHUNK = 16_384  # vectors of one chunk of an array
MERGED = 1 << 16  # vectors searched exactly at a time


class Vectors(Protocol):
    """The dense vectors of a corpus in row order, never all in memory."""

    def __len__(self) -> int:
        """Return the number of vectors."""
        ...

    def __iter__(self) -> Iterator[Dense]:
        """Yield chunks ``[n, dim]`` from the first row to the last; every time anew."""
        ...

    def sample(self, count: int, seed: int) -> Dense:
        """Return ``count`` vectors drawn without replacement; or all, if there are fewer."""
        ...


class ArrayVectors:
    """One array ``[n, dim]`` as ``Vectors``."""

    def __init__(self, vectors: Dense) -> None:
        self._vectors = checked_dense(vectors, None, "vectors")

    def __len__(self) -> int:
        return len(self._vectors)

    def __iter__(self) -> Iterator[Dense]:
        for start in range(0, len(self._vectors), CHUNK):
            yield self._vectors[start : start + CHUNK]

    def sample(self, count: int, seed: int) -> Dense:
        """Return ``count`` rows in ascending order; or all, if there are fewer."""
        if count >= len(self):
            return self._vectors
        rows = np.random.default_rng(seed).choice(len(self), count, replace=False)
        return self._vectors[np.sort(rows)]


def vectors_of_rows(vectors: Vectors, rows: Rows) -> Dense:
    """Return the vectors of ascending ``rows``, in one pass."""
    parts, first = [], 0
    for chunk in vectors:
        start, stop = np.searchsorted(rows, (first, first + len(chunk)))
        parts.append(np.asarray(chunk[rows[start:stop] - first], np.float32))
        first += len(chunk)
    return np.concatenate(parts)


def exact_hits(vectors: Vectors, queries: Dense, k: int, metric: Metric) -> Hits:
    """Return the ``k`` best vectors of each query, as ``FlatIndex`` would, a part at a time."""
    best, first = Hits.missing(len(queries), k), 0
    part = FlatIndex(metric)

    def merged() -> Hits:
        hits = part.search(queries, k)
        rows = np.concatenate([best.rows, np.where(hits.rows >= 0, hits.rows + first, -1)], axis=1)
        scores = np.concatenate([best.scores, hits.scores], axis=1)
        return Hits(rows, scores).sorted(k)

    for chunk in vectors:
        part.add(chunk)
        if part.rows >= MERGED:
            best, first, part = merged(), first + part.rows, FlatIndex(metric)
    return merged() if part.rows else best
