"""The mean of each document's passage vectors, dense or sparse."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def mean_vectors(vectors: Any, counts: NDArray[np.int64], *, normalize: bool) -> Any:
    """Return one vector a document, the mean of its ``counts`` consecutive passages.

    ``counts`` ``[documents]`` are 1 or more and add up to the rows of ``vectors``. A document of
    one passage keeps exactly its vector. With ``normalize`` the means of several dense vectors are
    scaled to unit length (a mean of zero stays zero).
    """
    if not isinstance(vectors, np.ndarray):
        return _sparse_means(vectors, counts)
    several = np.flatnonzero(counts > 1)
    starts = np.cumsum(counts) - counts
    means = vectors[starts]
    if len(several):
        # Per document, not by a running sum: a mean depends on its own passages alone.
        for row in several:
            part = vectors[starts[row] : starts[row] + counts[row]]
            mean = part.mean(axis=0, dtype=np.float64)
            length = float(np.sqrt(mean @ mean)) if normalize else 1.0
            means[row] = mean / (length or 1.0)
    return means


def _sparse_means(vectors: Any, counts: NDArray[np.int64]) -> Any:
    from scipy import sparse

    total = int(counts.sum())
    shares = np.repeat(1.0 / counts, counts)
    ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    choose = sparse.csr_array((shares, np.arange(total), ends), shape=(len(counts), total))
    means: Any = sparse.csr_array(choose @ vectors.astype(np.float64)).astype(np.float32)
    means.sort_indices()
    return means
