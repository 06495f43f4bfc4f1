"""MaxSim by brute force, and token vectors that are hard to search."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.tokens import TokenVectors

LANES = 32  # partial sums of a product


def products(query: NDArray[Any], documents: NDArray[Any]) -> NDArray[np.float64]:
    """Inner products in float64, ``[m]``, each summed in the documented order of dimensions."""
    parts = documents.astype(np.float64) * query.astype(np.float64)
    whole = len(query) - len(query) % LANES
    totals = np.zeros((len(parts), LANES))
    for first in range(0, whole, LANES):
        totals += parts[:, first : first + LANES]
    while totals.shape[1] > 1:
        half = totals.shape[1] // 2
        totals = totals[:, :half] + totals[:, half:]
    total: NDArray[np.float64] = totals[:, 0]
    for place in range(whole, len(query)):
        total = total + parts[:, place]
    return total


def brute_scores(query: NDArray[Any], documents: TokenVectors) -> NDArray[np.float32]:
    """The score of one query with each document; -inf where either has no tokens."""
    scores = np.full(len(documents), -np.inf, np.float32)
    filled = np.flatnonzero(documents.lengths)
    if not len(query) or not len(filled):
        return scores
    totals = np.zeros(len(filled))
    for token in query:
        best = np.maximum.reduceat(products(token, documents.values), documents.bounds[filled])
        totals = totals + best
    largest = float(np.finfo(np.float32).max)
    scores[filled] = np.clip(totals, -largest, largest)
    return scores


def brute_hits(
    queries: TokenVectors, documents: TokenVectors, k: int, live: Any = None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Rows and scores ``[n, k]`` of the best live documents, ties by row."""
    rows = np.full((len(queries), k), -1, np.int64)
    scores = np.full((len(queries), k), -np.inf, np.float32)
    for place, query in enumerate(queries):
        line = brute_scores(query, documents)
        order = np.lexsort((np.arange(len(line)), -line))
        possible = (line > -np.inf) if live is None else (line > -np.inf) & live
        order = order[possible[order]][:k]
        rows[place, : len(order)], scores[place, : len(order)] = order, line[order]
    return rows, scores


def awkward(seed: int, count: int, width: int, longest: int) -> TokenVectors:
    """Texts with exact and nearly equal tokens, zeros, no tokens, and lengths far apart."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest + 1, count)
    total = int(lengths.sum())
    base = rng.standard_normal((max(1, total // 4), width)).astype(np.float32)
    values = base[rng.integers(0, len(base), total)]
    nudged = rng.random(total) < 0.4
    values[nudged, 0] *= np.float32(1 + 1e-7)
    values[rng.random(total) < 0.1] = 0
    kind = seed % 4
    if kind == 1:  # unit vectors, as encoders give them
        values /= np.maximum(np.linalg.norm(values, axis=1, keepdims=True), np.float32(1e-9))
    elif kind == 2:
        values *= np.float32(10.0) ** rng.integers(-20, 18, (total, 1)).astype(np.float32)
    elif kind == 3 and rng.random() < 0.5:  # near both ends of float32
        values *= np.float32(10.0) ** rng.choice([-44, -38, 0, 37], (total, 1)).astype(np.float32)
        values = np.clip(values, -3e38, 3e38)
    vectors = TokenVectors(values, np.concatenate([[0], np.cumsum(lengths)]))
    if count > 2:  # some texts twice
        vectors = vectors.rows(np.where(rng.random(count) < 0.2, 0, np.arange(count)))
    return vectors
