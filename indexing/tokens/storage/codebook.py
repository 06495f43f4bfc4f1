"""Centroids and steps: token vectors in a few bits a dimension, and how they are learnt."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing.checks import Dense
from sluice.indexing.kernels.calls import in_parallel
from sluice.indexing.tokens.storage.rounding import LEVELS
from sluice.indexing.tokens.storage.segment import ZERO, code_width

CENTROIDS = 1024  # at most
TOKENS_PER_CENTROID = 64  # of the sample
ROUNDS = 8  # of k-means
STEPS = 16  # that four bits of a code may say
_BLOCK = 4096  # tokens compared with the centroids at a time
LARGEST_SCALE = 1e38  # that bfloat16 does not round up to infinity


class Codebook(NamedTuple):
    """What codes of residuals mean.

    A token's direction (its vector over its norm) is ``unit * (table[c] - ZERO + levels[code])``
    in each dimension, for the centroid c nearest to it; the result is scaled to the token's norm,
    rounded to bfloat16. ``table`` is uint8 ``[centroids, cells * CELL]``, ``levels`` int8
    ``[16]``, ascending (of two bits four, four times over), both in steps of ``unit``: whole
    numbers, so that a decoded vector is one of 8-bit integers and a scale, which is searched
    without further loss.
    """

    table: NDArray[np.uint8]
    levels: NDArray[np.int8]
    unit: float

    @property
    def blank(self) -> bool:
        """Whether it was learnt from no tokens, or from zeros alone."""
        return len(self.table) == 1 and bool((self.table == ZERO).all())


def learn_codebook(sample: TokenVectors, seed: int, bits: int) -> Codebook:
    """Return the codebook of sample documents: spherical k-means, and Lloyd's levels of the rest.

    A dimension has ``bits`` bits: 4 or 2.

    At most ``CENTROIDS * TOKENS_PER_CENTROID`` tokens are drawn by ``seed``, and of those with a
    vector of zeros none.
    """
    rng = np.random.default_rng(seed)
    most = CENTROIDS * TOKENS_PER_CENTROID
    count = len(sample.values)
    chosen = np.arange(count) if count <= most else np.sort(rng.choice(count, most, replace=False))
    directions, norms = _directions(sample.values[chosen])
    directions = directions[norms > 0]
    wide = code_width(sample.dim)
    if not len(directions):
        return Codebook(
            np.full((1, wide), ZERO, np.uint8), _repeated(np.arange(-8, 8), bits), 1 / LEVELS
        )
    centroids = _k_means(directions, rng)
    nearest = _nearest(directions, centroids)
    # Few values lie beyond; they are cut off there.
    reach = float(np.quantile(np.abs(directions), 0.9999))
    if not reach:  # of wide vectors that are nearly all zeros
        reach = float(np.abs(directions).max())
    unit = reach / LEVELS
    table = np.clip(np.rint(centroids / unit), -LEVELS, LEVELS)
    rest = (directions / unit - table[nearest]).ravel()
    filled = np.full((len(centroids), wide), ZERO, np.uint8)
    filled[:, : sample.dim] = (table + ZERO).astype(np.uint8)
    levels = _lloyd(rest[:: max(1, len(rest) >> 18)], 1 << bits)
    return Codebook(filled, _repeated(levels, bits), unit)


def _repeated(levels: NDArray[Any], bits: int) -> NDArray[np.int8]:
    """Return the first levels of so many bits as often as four bits take: others are not read."""
    return np.tile(levels[: 1 << bits].astype(np.int8), STEPS >> bits)


def _directions(values: Dense) -> tuple[Dense, NDArray[np.float64]]:
    """Return vectors over their norms, and the norms."""
    wide = values.astype(np.float64)
    norms = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    inverse = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)
    return (wide * inverse[:, None]).astype(np.float32), norms


def _k_means(directions: Dense, rng: np.random.Generator) -> Dense:
    wanted = 1 << max(0, int(np.log2(max(1, len(directions) / TOKENS_PER_CENTROID))))
    count = min(CENTROIDS, wanted)
    centroids = directions[np.sort(rng.choice(len(directions), count, replace=False))]
    for _ in range(ROUNDS):
        nearest = _nearest(directions, centroids)
        order = np.argsort(nearest, kind="stable")
        filled, firsts = np.unique(nearest[order], return_index=True)
        sums = np.add.reduceat(directions[order].astype(np.float64), firsts, axis=0)
        lengths = np.linalg.norm(sums, axis=1)
        good = lengths > 0
        # A centroid without tokens stays where it is.
        centroids = centroids.copy()
        centroids[filled[good]] = sums[good] / lengths[good, None]
    # The mean of a cluster is nearer to its directions than the mean's direction is.
    nearest = _nearest(directions, centroids)
    order = np.argsort(nearest, kind="stable")
    filled, firsts, sizes = np.unique(nearest[order], return_index=True, return_counts=True)
    sums = np.add.reduceat(directions[order].astype(np.float64), firsts, axis=0)
    centroids[filled] = sums / sizes[:, None]
    return centroids


def _nearest(directions: Dense, centroids: Dense) -> NDArray[np.int64]:
    """Return each direction's centroid of the least distance."""
    nearest = np.empty(len(directions), np.int64)
    half = np.einsum("ij,ij->i", centroids, centroids) / 2
    for start in range(0, len(directions), _BLOCK):
        products = directions[start : start + _BLOCK] @ centroids.T
        products -= half
        nearest[start : start + _BLOCK] = products.argmax(axis=1)
    return nearest


def _lloyd(rest: NDArray[np.floating], count: int) -> NDArray[np.int8]:
    """Return whole levels that are near the values: Lloyd's algorithm in one dimension."""
    values = np.sort(rest.astype(np.float64))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    levels = np.quantile(values, (np.arange(count) + 0.5) / count)
    for _ in range(50):
        edges = np.searchsorted(values, (levels[1:] + levels[:-1]) / 2)
        edges = np.concatenate([[0], edges, [len(values)]])
        sizes = np.diff(edges)
        means = np.diff(sums[edges]) / np.maximum(sizes, 1)
        levels = np.sort(np.where(sizes > 0, means, levels))
    return np.clip(np.rint(levels), -LEVELS, LEVELS).astype(np.int8)


def residual_codes(
    values: Dense, book: Codebook, bits: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint16], NDArray[np.uint16]]:
    """Return codes ``[tokens, part]`` of so many bits, scales and centroids of token vectors."""
    wide = book.table.shape[1]
    codes = np.empty((len(values), wide * bits // 8), np.uint8)
    scales, centroids = np.empty((2, len(values)), np.uint16)
    means = ((book.table[:, : values.shape[1]].astype(np.float64) - ZERO) * book.unit).astype(
        np.float32
    )
    for start in range(0, len(values), _BLOCK):
        part = slice(start, start + _BLOCK)
        directions, norms = _directions(values[part])
        nearest = _nearest(directions, means).astype(np.uint16)
        centroids[part] = nearest

        def task(
            first: int,
            last: int,
            block: tuple[slice, Dense, NDArray[np.float64]] = (part, directions, norms),
        ) -> None:
            where, vectors, lengths = block
            _write_codes(
                vectors,
                lengths,
                centroids[where],
                book.table,
                book.levels[: 1 << bits],
                book.unit,
                first,
                last,
                codes[where],
                scales[where],
            )

        in_parallel(task, len(directions), 256)
    return codes, scales, centroids


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _write_codes(
    directions: NDArray[np.float32],
    norms: NDArray[np.float64],
    centroids: NDArray[np.uint16],
    table: NDArray[np.uint8],
    levels: NDArray[np.int8],
    unit: float,
    first: int,
    last: int,
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint16],
) -> None:
    width, part = directions.shape[1], codes.shape[1]
    wide = table.shape[1]
    parts = wide // part
    inverse = 1 / unit
    edges = (levels[1:].astype(np.float64) + levels[:-1]) / 2
    chosen = np.empty(wide, np.uint8)
    for token in range(first, last):
        length = 0.0
        for i in range(wide):
            if i >= width:
                chosen[i] = 0
                continue
            base = np.int64(table[centroids[token], i])
            rest = np.float64(directions[token, i]) * inverse - (base - ZERO)
            level = 0
            for edge in edges:
                level += rest > edge
            chosen[i] = level
            whole = np.int64(min(max(base + levels[level], 1), 255)) - ZERO
            length += np.float64(whole * whole)
        for i in range(part):
            together = 0
            for place in range(parts):
                together |= np.int64(chosen[place * part + i]) << (place * 8 // parts)
            codes[token, i] = np.uint8(together)
        scale = np.float32(0)
        if length > 0:
            scale = np.float32(min(norms[token] / np.sqrt(length), LARGEST_SCALE))
        bits = np.uint32(np.float32(scale).view(np.uint32))
        bits = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
        scales[token] = np.uint16(bits >> np.uint32(16))
