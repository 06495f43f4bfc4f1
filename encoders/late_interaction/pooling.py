"""Pools the token vectors of documents: like tokens share one vector, the mean of theirs.

Ward's clustering on cosine distances (Clavié, Chaffin and Adams, 2024, arXiv 2409.14683), by the
chain of nearest neighbours (Murtagh, 1983), which takes the square of a document's tokens.
"""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
# numba types the kernels; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


def pooled_tokens(
    values: NDArray[np.float32],
    counts: NDArray[np.int64],
    factor: float,
    *,
    protected: int,
    normalize: bool,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the pooled vectors of documents, end to end, and how many each has.

    ``values`` float32 ``[tokens, dim]`` are unit vectors, ``counts`` of them to each document. The
    first ``protected`` of a document stay as they are; the n others become ``max(1, n // factor)``
    clusters, in the order of their first tokens, or fewer where merges tie. With ``normalize``,
    means have length 1.
    """
    parts = list[NDArray[np.float32]]()
    after = np.zeros_like(counts)
    ends = np.cumsum(counts)
    for row, (start, end) in enumerate(zip((ends - counts).tolist(), ends.tolist(), strict=True)):
        first = min(start + protected, end)
        rest = values[first:end]
        labels = _labels(rest, factor)
        if labels is not None:
            rest = cluster_means(rest, labels, normalize)
        parts += values[start:first], rest
        after[row] = first - start + len(rest)
    return (np.concatenate(parts) if parts else values[:0]), after


def _labels(rest: NDArray[np.float32], factor: float) -> NDArray[np.int64] | None:
    """Return the cluster of each vector, None where each is one of its own."""
    clusters = max(int(len(rest) // factor), 1)
    if clusters >= len(rest):
        return None
    labels: NDArray[np.int64] = ward_labels(np.ascontiguousarray(rest @ rest.T), clusters)
    return labels


def pooled_labels(values: NDArray[np.float32], factor: float, protected: int) -> NDArray[np.int64]:
    """Return which of the pooled vectors of a document each of its tokens is part of."""
    labels = np.arange(len(values))
    rest = _labels(values[protected:], factor)
    if rest is not None:
        labels[protected:] = min(protected, len(values)) + rest
    return labels


def cluster_means(
    vectors: NDArray[np.float32], labels: NDArray[np.int64], normalize: bool
) -> NDArray[np.float32]:
    """Return the mean vector of each label 0, 1, ...; with ``normalize``, of length 1."""
    sizes = np.bincount(labels)
    order = np.argsort(labels, kind="stable")
    starts = np.cumsum(sizes) - sizes
    means = np.add.reduceat(vectors[order], starts) / sizes[:, None].astype(np.float32)
    if normalize:
        lengths = np.linalg.norm(means, axis=1, keepdims=True)
        means /= np.maximum(lengths, np.float32(1e-12))
    return np.asarray(means, np.float32)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def ward_labels(cosines: NDArray[np.float32], clusters: int) -> NDArray[np.int64]:
    """Return the cluster of each of n vectors by their cosines ``[n, n]``.

    Clusters are numbered by their first members. Of ``clusters`` there are fewer where the merge
    that would leave as many is as high as the next.
    """
    count = len(cosines)
    squares = np.empty((count, count), np.float64)  # of distances, which Ward's rule adds up
    for row in range(count):
        for other in range(count):
            distance = min(max(1.0 - cosines[row, other], 0.0), 2.0)
            squares[row, other] = distance * distance
    lower, upper, heights = _merges(squares)
    order = np.argsort(heights)
    limit = heights[order[count - clusters - 1]]
    root = np.arange(count)
    for place in order:
        if heights[place] > limit:
            break
        first, second = _root(root, lower[place]), _root(root, upper[place])
        root[max(first, second)] = min(first, second)
    labels, next_label = np.empty(count, np.int64), 0
    for token in range(count):
        found = _root(root, token)
        if found == token:
            labels[token] = next_label
            next_label += 1
        else:
            labels[token] = labels[found]
    return labels


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _root(root: NDArray[np.int64], token: int) -> int:
    while root[token] != token:
        root[token] = root[root[token]]
        token = root[token]
    return token


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _merges(
    squares: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the n - 1 merges: a member of either cluster, and the squared height; in any order.

    ``squares`` is overwritten.
    """
    count = len(squares)
    lower, upper = np.empty(count - 1, np.int64), np.empty(count - 1, np.int64)
    heights = np.empty(count - 1, np.float64)
    sizes, active = np.ones(count, np.int64), np.arange(count)  # the first ``left`` are active
    chain, length, left = np.empty(count, np.int64), 0, count
    for step in range(count - 1):
        if length == 0:
            chain[0], length = active[0], 1
        while True:
            last = chain[length - 1]
            nearest, least = -1, np.inf
            if length > 1:
                nearest = chain[length - 2]
                least = squares[last, nearest]
            for place in range(left):
                other = active[place]
                if other != last and squares[last, other] < least:
                    nearest, least = other, squares[last, other]
            if length > 1 and nearest == chain[length - 2]:
                break
            chain[length] = nearest
            length += 1
        length -= 2
        low, high = min(last, nearest), max(last, nearest)
        lower[step], upper[step], heights[step] = low, high, least
        size_low, size_high = sizes[low], sizes[high]
        kept = 0
        for place in range(left):  # the merged cluster has the higher number
            other = active[place]
            if other == low:
                continue
            active[kept] = other
            kept += 1
            if other != high:
                size = sizes[other]
                square = (
                    (size + size_low) * squares[other, low]
                    + (size + size_high) * squares[other, high]
                    - size * least
                ) / (size + size_low + size_high)
                squares[other, high] = square
                squares[high, other] = square
        left = kept
        sizes[high] = size_low + size_high
    return lower, upper, heights
