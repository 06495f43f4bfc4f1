"""Exact scores of dense vectors, the same whatever the batch and the block size."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.indexing.checks import Dense
from sluice.indexing.hits import LARGEST_SCORE
from sluice.indexing.kernels.calls import numpy_suffices

Metric = Literal["ip", "cosine", "l2"]
METRICS: tuple[Metric, ...] = ("ip", "cosine", "l2")
Norms = NDArray[np.float64]

GATHER_VALUES = 1 << 17  # float64 values in one step: 1 MiB stays in the cache
LANES = 32  # partial sums of a score
NUMPY_SECONDS = 4e-9  # for each value that is multiplied without kernels


def checked_metric(metric: Any) -> Metric:
    """Return ``metric`` if it is known."""
    for known in METRICS:
        if metric == known:
            return known
    if isinstance(metric, int):
        raise ConfigError("an index takes its width from the first vectors; write: FlatIndex()")
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

    The sum runs in float64 over each row by itself, in an order that is a function of the width
    alone, and is rounded to float32 once, so equal vectors have equal scores in every row. A
    BLAS product does not promise that: its order depends on the shapes. A score that float32
    cannot hold becomes the largest it can, with the score's sign.
    """
    if numpy_suffices(documents.size * NUMPY_SECONDS):
        return numpy_scores(query, documents, metric, query_norm, norms)
    from sluice.indexing.kernels.ranking import (
        score_documents,  # numba: loaded by the first score
    )

    scores = np.empty(len(documents), dtype=np.float32)
    wide = query.astype(np.float64)[None]
    score_documents(METRICS.index(metric), wide, documents, query_norm, norms, scores)
    return scores


def numpy_scores(
    query: Dense, documents: Dense, metric: Metric, query_norm: float, norms: Norms
) -> Dense:
    """Return what ``exact_scores`` does, bit for bit, without compiled kernels."""
    scores = np.empty(len(documents), dtype=np.float32)
    step = max(1, GATHER_VALUES // len(query))
    for start in range(0, len(documents), step):
        totals = _summed(query.astype(np.float64), documents[start : start + step], metric == "l2")
        if metric == "cosine":
            lengths = query_norm * norms[start : start + step]
            totals = np.divide(totals, lengths, out=np.zeros_like(totals), where=lengths > 0)
        scores[start : start + step] = np.clip(totals, -LARGEST_SCORE, LARGEST_SCORE)
    return scores


def _summed(query: NDArray[np.float64], documents: Dense, squares: bool) -> NDArray[np.float64]:
    """Return the sums of products, or of negative squared differences, in the kernels' order.

    Partial sum ``i`` takes each dimension ``i`` modulo ``LANES``; halves are then added until one
    is left, and to that the dimensions beyond a multiple of ``LANES`` one by one.
    """
    wide = documents.astype(np.float64)
    parts = (wide - query) ** 2 if squares else wide * query
    whole = len(query) - len(query) % LANES
    totals = np.zeros((len(wide), LANES))
    for first in range(0, whole, LANES):
        totals += parts[:, first : first + LANES]
    while totals.shape[1] > 1:
        half = totals.shape[1] // 2
        totals = totals[:, :half] + totals[:, half:]
    total: NDArray[np.float64] = totals[:, 0]
    for place in range(whole, len(query)):
        total = total + parts[:, place]
    return -total if squares else total
