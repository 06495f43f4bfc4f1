"""Kullback-Leibler divergence of diagonal Gaussians as an inner product of longer vectors.

Of a query's N(m, v) and a document's N(n, w), each of k dimensions,
``-2 KL(query || document) = sum_i (log(v_i / w_i) + 1 - (v_i + (m_i - n_i)^2) / w_i)``.
What depends on the query alone changes no ranking. Without it, and with all variances held against
a constant r (their usual size, so that neither side's numbers cancel out in float32), the score is

    S = sum_i (v_i + m_i^2) (1/r - 1/w_i) + 2 m_i n_i / w_i - log(w_i / r) - n_i^2 / w_i

and ``-2 KL = S - sum_i ((v_i + m_i^2) / r - log(v_i / r) - 1)``. S is the inner product of
``[1, v + m^2, m]`` and ``[-sum(log(w / r) + n^2 / w), 1/r - 1/w, 2 n / w]``. (Zamani and Bendersky
2023, Multivariate Representation Learning for Information Retrieval. Their equations 10, 13 and 14
have a ratio of products of variances where the divergence has a sum of ratios; not so here.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.encoders.encoder import Side


class Gaussians(NamedTuple):
    """Means and variances ``[n, k]``."""

    means: NDArray[np.float64]
    variances: NDArray[np.float64]


def width_of(dimensions: int) -> int:
    """Return the width of the vectors of Gaussians of so many dimensions."""
    return 2 * dimensions + 1


def augmented(means: Tensor, variances: Tensor, side: Side, reference: float) -> Tensor:
    """Return vectors ``[n, 2k + 1]`` whose inner products are S; r is ``reference``."""
    if side == "query":
        return torch.cat([torch.ones_like(means[:, :1]), variances + means.square(), means], dim=1)
    precisions = 1 / variances
    bias = -((variances / reference).log() + means.square() * precisions).sum(1, keepdim=True)
    return torch.cat([bias, 1 / reference - precisions, 2 * means * precisions], dim=1)


def gaussians_of(vectors: NDArray[np.float32], side: Side, reference: float) -> Gaussians:
    """Return the Gaussians ``[n, k]`` that ``augmented`` made vectors ``[n, 2k + 1]`` of."""
    wide = np.asarray(vectors, np.float64)
    dimensions = wide.shape[1] // 2
    middle, last = wide[:, 1 : dimensions + 1], wide[:, dimensions + 1 :]
    if side == "query":
        return Gaussians(last, middle - last**2)
    variances = 1 / (1 / reference - middle)
    return Gaussians(last * variances / 2, variances)
