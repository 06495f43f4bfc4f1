"""Centroids of token vectors: k-means in two levels, so that a million documents take minutes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError, IndexFormatError

Floats = NDArray[np.float32]
Codes = NDArray[np.int32]

POINTS = 32  # sampled token vectors for one centroid
ROUNDS = 6  # of k-means, in each level
CELLS_TRIED = 8  # coarse cells whose centroids a vector is compared with
CHUNK = 32_768  # token vectors assigned at a time


def centroid_count(tokens: int) -> int:
    """Return PLAID's number of centroids for so many tokens, a power of two near 16 roots.

    (Santhanam et al., 2022, PLAID, section 4.) There are never fewer than two tokens a centroid.
    """
    if tokens < 4:
        return 1
    usual = 1 << int(math.log2(16 * math.sqrt(tokens)))
    return max(1, min(usual, tokens // 2))


class Centroids:
    """Centroids ``[count, dim]``, sorted by the coarse cell they lie in.

    ``cells`` is float32 ``[cells, dim]``, ``bounds`` int64 ``[cells + 1]``: cell i has the
    centroids from ``bounds[i]`` to ``bounds[i + 1]``. A vector is assigned to the nearest centroid
    of its ``CELLS_TRIED`` nearest cells, by Euclidean distance, which for unit vectors is nearly
    always the nearest of all.
    """

    def __init__(self, values: Floats, cells: Floats, bounds: NDArray[np.int64]) -> None:
        self.values, self.cells, self.bounds = values, cells, bounds

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def trained(cls, sample: Floats, count: int, seed: int) -> Centroids:
        """Return ``count`` centroids, or as many as the sample ``[n, dim]`` has distinct vectors.

        Coarse cells are found first, then each cell's share of centroids within it (Lloyd, 1982).
        The same sample, count and seed give the same centroids on the same machine.
        """
        if not len(sample):
            raise DataError("gather: no token vectors to learn centroids from; add documents first")
        rng = np.random.default_rng(seed)
        count = max(1, min(count, len(sample)))
        cells = _k_means(sample, max(1, round(math.sqrt(count))), rng)
        nearest = _nearest(sample, cells)
        order = np.argsort(nearest, kind="stable")
        edges = np.searchsorted(nearest[order], np.arange(len(cells) + 1))
        parts: list[Floats] = []
        kept: list[int] = []
        for cell, share in enumerate(_shares(np.diff(edges), count)):
            if share:
                members = sample[order[edges[cell] : edges[cell + 1]]]
                parts.append(_k_means(members, share, rng))
                kept.append(cell)
        bounds = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        return cls(np.concatenate(parts), cells[kept], bounds)

    @classmethod
    def from_arrays(
        cls, values: Floats, cells: Floats, bounds: NDArray[np.int64], folder: Path
    ) -> Centroids:
        """Return centroids that were stored, if their cells are as they should be."""
        if bounds[0] or (np.diff(bounds) < 0).any() or bounds[-1] != len(values):
            raise IndexFormatError(
                f"{folder / 'gather_bounds.npy'}: not the cells of {len(values):,} centroids; "
                "rebuild the index"
            )
        if not (np.isfinite(values).all() and np.isfinite(cells).all()):
            raise IndexFormatError(
                f"{folder / 'gather_centroids.npy'}: the centroids, or their cells, have values "
                "that are infinite or no numbers; rebuild the index"
            )
        return cls(values, cells, bounds)

    def assign(self, vectors: Floats) -> Codes:
        """Return each vector's centroid, int32 ``[n]``."""
        codes = np.empty(len(vectors), np.int32)
        for start in range(0, len(vectors), CHUNK):
            codes[start : start + CHUNK] = self._assigned(
                np.asarray(vectors[start : start + CHUNK], np.float32)
            )
        return codes

    def _assigned(self, vectors: Floats) -> Codes:
        tried = min(CELLS_TRIED, len(self.cells))
        cells = _nearest_few(vectors, self.cells, tried)  # [n, tried]
        places = np.repeat(np.arange(len(vectors)), tried)
        order = np.argsort(cells.ravel(), kind="stable")
        places, sorted_cells = places[order], cells.ravel()[order]
        edges = np.searchsorted(sorted_cells, np.arange(len(self.cells) + 1))
        best = np.full(len(vectors), -np.inf, np.float32)
        codes = np.zeros(len(vectors), np.int32)
        halves = _half_squares(self.values)
        for cell in np.flatnonzero(np.diff(edges)).tolist():
            members = places[edges[cell] : edges[cell + 1]]
            first, last = int(self.bounds[cell]), int(self.bounds[cell + 1])
            closeness = vectors[members] @ self.values[first:last].T - halves[first:last]
            found = closeness.argmax(axis=1)
            value = closeness[np.arange(len(members)), found]
            better = value > best[members]
            best[members[better]] = value[better]
            codes[members[better]] = first + found[better]
        return codes


def _k_means(sample: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Return at most ``count`` centroids of a sample; none is empty."""
    if len(sample) <= count:
        return np.unique(sample, axis=0)
    centroids = sample[np.sort(rng.choice(len(sample), count, replace=False))].copy()
    for _ in range(ROUNDS):
        nearest = _nearest(sample, centroids)
        order = np.argsort(nearest, kind="stable")
        edges = np.searchsorted(nearest[order], np.arange(count + 1))
        sizes = np.diff(edges)
        filled = np.flatnonzero(sizes)
        members = sample[order].astype(np.float64)
        sums = np.add.reduceat(members, edges[filled], axis=0)
        reaches = np.add.reduceat(np.linalg.norm(members, axis=1), edges[filled])
        centroids[filled] = _lengthened(sums / sizes[filled, None], reaches / sizes[filled])
        empty = np.flatnonzero(sizes == 0)
        if len(empty):
            centroids[empty] = sample[rng.choice(len(sample), len(empty), replace=False)]
    return centroids


def _lengthened(means: NDArray[np.float64], lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the directions of means with the mean length of their members.

    A mean is shorter than its members, the more so the wider they lie apart, and would promise
    less than the best of them keeps. For unit vectors this is spherical k-means.
    """
    norms = np.linalg.norm(means, axis=1)
    factors = np.divide(lengths, norms, out=np.ones_like(norms), where=norms > 0)
    stretched: NDArray[np.float64] = means * factors[:, None]
    return stretched


def _shares(sizes: NDArray[np.int64], count: int) -> list[int]:
    """Divide ``count`` centroids among cells by the tokens in them, at least one to each."""
    wanted = np.where(sizes > 0, np.maximum(1, sizes * count // max(1, int(sizes.sum()))), 0)
    return [int(share) for share in wanted]


def _half_squares(vectors: Floats) -> Floats:
    return np.asarray(0.5 * np.einsum("nd,nd->n", vectors, vectors), np.float32)


def _nearest(vectors: Floats, centroids: Floats) -> NDArray[np.int64]:
    """Return the nearest centroid of each vector; of equals the first."""
    nearest = np.empty(len(vectors), np.int64)
    halves = _half_squares(centroids)
    for start in range(0, len(vectors), CHUNK):
        closeness = vectors[start : start + CHUNK] @ centroids.T
        closeness -= halves
        nearest[start : start + CHUNK] = closeness.argmax(axis=1)
    return nearest


def _nearest_few(vectors: Floats, centroids: Floats, few: int) -> NDArray[np.int64]:
    """Return the ``few`` nearest centroids of each vector, in no order."""
    if few == len(centroids):
        return np.tile(np.arange(few, dtype=np.int64), (len(vectors), 1))
    closeness = vectors @ centroids.T
    closeness -= _half_squares(centroids)
    return np.argpartition(-closeness, few - 1, axis=1)[:, :few]
