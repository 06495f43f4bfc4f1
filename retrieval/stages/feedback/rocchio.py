"""Dense queries moved towards the documents that were found, and away from the last of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sluice.indexing.checks import Dense

Places = NDArray[np.int64]  # [queries, most]: places of documents, -1 for none
Moved = NDArray[np.float64]


def averaged(queries: Dense, documents: Dense, top: Places, *, unit: bool = False) -> Moved:
    """Return the mean of each query and its feedback documents, float64 ``[n, dim]``.

    With k documents that is Rocchio's sum with ``alpha = 1 / (k + 1)``, ``beta = k / (k + 1)``.
    The rest is as in ``rocchio``. (Li et al., 2021, arXiv 2108.11044: vector PRF.)
    """
    found = np.count_nonzero(top >= 0, axis=1) + 1.0
    none = np.full((len(queries), 0), -1, np.int64)
    return _moved(queries, documents, top, none, 1 / found, 1 - 1 / found, 0.0, unit=unit)


def rocchio(
    queries: Dense,
    documents: Dense,
    top: Places,
    bottom: Places,
    *,
    alpha: float,
    beta: float,
    gamma: float,
    unit: bool = False,
) -> Moved:
    """Return ``alpha q + beta mean(top) - gamma mean(bottom)`` of each query, float64 ``[n, dim]``.

    ``top`` and ``bottom`` are places in ``documents`` ``[m, dim]``. The mean of no documents is 0;
    a query that no document moves stays what it was, ``alpha`` or not. ``unit`` is for cosines:
    queries and documents are scaled to unit length before, the sum after; a sum of length 0 leaves
    the query as it was. Costs ``n x most x dim`` additions and keeps one ``[n, dim]`` beside the
    result. (Rocchio, 1971; over dense vectors Li et al., 2021, arXiv 2108.11044.)
    """
    count = len(queries)
    weights = np.full(count, alpha), np.full(count, beta)
    return _moved(queries, documents, top, bottom, *weights, gamma, unit=unit)


def _moved(
    queries: Dense,
    documents: Dense,
    top: Places,
    bottom: Places,
    alpha: Moved,
    beta: Moved,
    gamma: float,
    *,
    unit: bool,
) -> Moved:
    before = queries.astype(np.float64)
    held = documents.astype(np.float64)
    own = before
    if unit:
        own, held = _unit(before), _unit(held)
    moved: Moved = alpha[:, None] * own
    moved += beta[:, None] * _means(held, top, own.shape[1])
    moved -= gamma * _means(held, bottom, own.shape[1])
    if unit:
        moved = _unit(moved)
    pulled = (beta != 0) & (top >= 0).any(axis=1)
    pushed = (bottom >= 0).any(axis=1) if gamma else np.zeros(len(own), np.bool_)
    kept = ~(pulled | pushed)
    if unit:
        kept |= ~moved.any(axis=1)
    moved[kept] = before[kept]
    return moved


def _means(documents: Moved, places: Places, width: int) -> Moved:
    """Return the mean of each query's documents, added up in the order of their places."""
    sums = np.zeros((len(places), width))
    for column in places.T:
        there = np.flatnonzero(column >= 0)
        sums[there] += documents[column[there]]
    found = np.count_nonzero(places >= 0, axis=1)
    sums /= np.maximum(found, 1)[:, None]
    return sums


def _unit(vectors: Moved) -> Moved:
    """Return the vectors at length 1, zeros as they are."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    scaled: Moved = vectors / np.where(lengths > 0, lengths, 1.0)[:, None]
    return scaled
