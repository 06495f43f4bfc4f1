"""Whitening: vectors of mean 0 and covariance 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError

LEAST = 1e-10  # of the largest variance: what a direction without any has by rounding


def whitened(vectors: NDArray[np.float64], called: str, otherwise: str) -> NDArray[np.float64]:
    """Return ``(x - m) C^(-1/2)`` for vectors ``[n, dim]`` of mean m and covariance C.

    Of all maps that whiten this one moves the vectors least. A direction in which no two differ
    (a layer norm leaves one) stays so. Raises ``DataError``, with the remedy ``otherwise``, where
    n is not above dim: any vectors would end equally far from each other.
    """
    count, dim = vectors.shape
    if count <= dim:
        raise DataError(
            f"{called}: {count} vectors of {dim} dimensions cannot be whitened, which takes more "
            f"than {dim}; add some, or {otherwise}"
        )
    centred = vectors - vectors.mean(axis=0)
    variances, axes = np.linalg.eigh(centred.T @ centred / count)
    full = variances > LEAST * variances[-1]
    result: NDArray[np.float64] = (
        centred @ (axes[:, full] / np.sqrt(variances[full])) @ axes[:, full].T
    )
    return result
