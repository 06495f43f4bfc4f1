"""Exact scores of dense vectors, row by row, that no batch shape or block size can change."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from encoders.errors import ConfigError, suggest
from indexing.hits import LARGEST_SCORE
from indexing.vectors import Dense

Metric = Literal["ip", "cosine", "l2"]
METRICS: tuple[Metric, ...] = ("ip", "cosine", "l2")
Norms = NDArray[np.float64]

UNIT_ROUNDOFF = 2.0**-24  # of float32
OVERFLOW = 1e37  # norms whose products stay under this cannot overflow float32
GATHER_VALUES = 1 << 17  # float64 values in one step: 1 MiB stays in the cache


def checked_metric(metric: str) -> Metric:
    """Return ``metric`` if it is known."""
    for known in METRICS:
        if metric == known:
            return known
    raise ConfigError(
        f"metric: unknown {metric!r}, expected ip, cosine or l2 (negative squared distance)"
        f"{suggest(str(metric), METRICS)}"
    )


def norms_of(vectors: Dense) -> Norms:
    """Return the Euclidean norm of each vector in float64."""
    norms = np.empty(len(vectors))
    step = max(1, GATHER_VALUES // max(1, vectors.shape[1]))
    for start in range(0, len(vectors), step):
        block = vectors[start : start + step].astype(np.float64)
        norms[start : start + step] = np.sqrt(np.einsum("ij,ij->i", block, block))
    return norms


def exact_scores(
    query: Dense, documents: Dense, metric: Metric, query_norm: float, norms: Norms
) -> Dense:
    """Return the scores of one query with documents ``[m, dim]``, float32 ``[m]``.

    The sum runs in float64 over each row by itself (einsum's own loop, whose order of summing is a
    function of the width alone) and is rounded to float32 once, so equal vectors have equal scores
    wherever they stand. A BLAS product does not promise that: its order depends on the shapes. A
    score that float32 cannot hold becomes the largest it can, with the score's sign.
    """
    scores = np.empty(len(documents), dtype=np.float32)
    wide = query.astype(np.float64)
    step = max(1, GATHER_VALUES // max(1, documents.shape[1]))
    for start in range(0, len(documents), step):
        block = documents[start : start + step].astype(np.float64)
        if metric == "l2":
            block -= wide
            sums = -np.einsum("ij,ij->i", block, block)
        else:
            sums = np.einsum("ij,j->i", block, wide)
        if metric == "cosine":
            length = norms[start : start + step] * query_norm
            sums = np.divide(sums, length, out=np.zeros_like(sums), where=length > 0)
        scores[start : start + step] = np.clip(sums, -LARGEST_SCORE, LARGEST_SCORE)
    return scores


def error_bound(metric: Metric, width: int, query_norm: float, largest_norm: float) -> float:
    """Return a bound on |float32 matrix-product score - exact score| for norms up to the largest.

    A float32 inner product in any order of summing is within ``n u / (1 - n u) |q| |d|`` of the
    true one (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 3.1); the rest
    covers rounding of norms and results, and underflow. Infinite where the product may overflow.
    """
    if max(query_norm, largest_norm, (query_norm + largest_norm) ** 2) > OVERFLOW:
        return math.inf
    grown = width * UNIT_ROUNDOFF / max(1.0 - width * UNIT_ROUNDOFF, 0.5)
    tiny = width * 1e-37
    if metric == "cosine":
        return grown + 16 * UNIT_ROUNDOFF + tiny
    if metric == "l2":
        reach = query_norm + largest_norm
        return (2 * grown + 16 * UNIT_ROUNDOFF) * reach * reach + tiny
    return (grown + 4 * UNIT_ROUNDOFF) * query_norm * largest_norm + tiny
