"""Exact scores of dense vectors, the same whatever the batch and the block size."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.indexing.checks import Dense

Metric = Literal["ip", "cosine", "l2"]
METRICS: tuple[Metric, ...] = ("ip", "cosine", "l2")
Norms = NDArray[np.float64]

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

    The sum runs in float64 over each row by itself, in an order that is a function of the width
    alone, and is rounded to float32 once, so equal vectors have equal scores in every row. A
    BLAS product does not promise that: its order depends on the shapes. A score that float32
    cannot hold becomes the largest it can, with the score's sign.
    """
    from sluice.indexing.kernels.exact_score import (
        score_documents,  # numba: loaded by the first score
    )

    scores = np.empty(len(documents), dtype=np.float32)
    wide = query.astype(np.float64)[None]
    score_documents(METRICS.index(metric), wide, documents, query_norm, norms, scores)
    return scores
