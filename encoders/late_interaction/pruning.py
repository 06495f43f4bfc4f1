"""Prunes the token vectors of documents: those go whose loss changes MaxSim least.

Those of sampled query vectors that a token is the best for are its Voronoi cell; its removal costs
each the difference to the second best. The token of the least sum goes, again and again: an error
of MaxSim estimated as by Kankanampati et al. (2026, arXiv 2603.09933), where queries are drawn near
the tokens. One that is best nowhere goes first: it is dominated (Zong and Piwowarski, 2025, arXiv
2504.12778, who prove that for all queries, by a linear programme).
"""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
# numba types the kernels; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

PoolBy: TypeAlias = Literal["ward", "voronoi"]
VORONOI: Final = "voronoi"
SAMPLES = 1024  # query vectors
SEED = 13


def pruned_tokens(
    values: NDArray[np.float32], counts: NDArray[np.int64], factor: float, *, protected: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the vectors of documents that stay, end to end, and how many each has.

    ``values`` float32 ``[tokens, dim]`` are unit vectors, ``counts`` of them to each document. The
    first ``protected`` of a document stay; of the n others ``max(1, n // factor)``, in their order.
    """
    ends = np.cumsum(counts)
    parts = [
        start + kept_tokens(values[start:end], factor, protected)
        for start, end in zip((ends - counts).tolist(), ends.tolist(), strict=True)
    ]
    places = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    return values[places], np.array([len(part) for part in parts], np.int64)


def kept_tokens(vectors: NDArray[np.float32], factor: float, protected: int) -> NDArray[np.int64]:
    """Return the places of a document's vectors that stay."""
    most = max(int(max(0, len(vectors) - protected) // factor), 1) + protected
    if most >= len(vectors):
        return np.arange(len(vectors))
    sampled = vectors[np.arange(SAMPLES) % len(vectors)] + _noise(vectors.shape[1])
    sampled /= np.maximum(np.linalg.norm(sampled, axis=1, keepdims=True), np.float32(1e-12))
    kept: NDArray[np.int64] = least_loss(sampled @ vectors.T, most, protected)
    return kept


@lru_cache(maxsize=4)
def _noise(dim: int) -> NDArray[np.float32]:
    """Return what is added to tokens for queries near them, of about length 1 each."""
    drawn = np.random.default_rng(SEED).standard_normal((SAMPLES, dim), np.float32)
    return np.asarray(drawn / np.sqrt(dim), np.float32)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def least_loss(products: NDArray[np.float32], most: int, protected: int) -> NDArray[np.int64]:
    """Return which ``most`` tokens stay, by the products ``[samples, tokens]`` of sampled queries.

    Of tokens whose loss costs the same the last goes. The first ``protected`` stay.
    """
    samples, count = products.shape
    there = np.ones(count, np.bool_)
    best = np.empty((samples, 2), np.int64)
    for row in range(samples):
        best[row] = _best_two(products[row], there)
    for _ in range(count - most):
        losses = np.zeros(count, np.float64)
        for row in range(samples):
            losses[best[row, 0]] += products[row, best[row, 0]] - products[row, best[row, 1]]
        gone = -1
        for token in range(protected, count):
            if there[token] and (gone < 0 or losses[token] <= losses[gone]):
                gone = token
        there[gone] = False
        for row in range(samples):
            if best[row, 0] == gone or best[row, 1] == gone:
                best[row] = _best_two(products[row], there)
    return np.flatnonzero(there)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _best_two(products: NDArray[np.float32], there: NDArray[np.bool_]) -> tuple[int, int]:
    """Return the two tokens there of the highest products, twice the same where there is one."""
    first, second = -1, -1
    for token in np.flatnonzero(there):
        if first < 0 or products[token] > products[first]:
            first, second = token, first
        elif second < 0 or products[token] > products[second]:
            second = token
    return first, first if second < 0 else second
