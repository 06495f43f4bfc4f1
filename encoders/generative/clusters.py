"""Hierarchical k-means: every document's place among its like, as digits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
