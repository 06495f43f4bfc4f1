"""How much a word tells, from the length of its vector: a weight without a corpus's statistics."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.encoders.foundation.errors import DataError


def information_gain(
    vectors: ArrayLike, shares: ArrayLike | None = None, contexts: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Return ``[n]``, in proportion to what each word of ``vectors`` ``[n, dim]`` says of others.

    That is the Kullback-Leibler divergence of the words around it from the words of any place. It
    is about half of ``u^T G u`` for skip-gram vectors u less their mean, G the covariance of the
    ``contexts`` ``[n, dim]``, both weighed by the ``shares`` ``[n]`` of the words in a corpus
    (Oyama et al. 2023, Norm of Word Embedding Encodes Information Gain, arXiv 2212.09663). With
    vectors alone it is their squared length, which grows with it. It holds for skip-gram vectors,
    not for the word embeddings of a BERT, whose rare words have the shorter ones. ``DataError`` for
    vectors that are not finite, or shapes that do not fit.
    """
    rows = np.asarray(vectors, np.float64)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise DataError(f"information gain: vectors {rows.shape}; expected finite numbers [n, dim]")
    if (shares is None) != (contexts is None):
        raise DataError("information gain: shares and contexts go together; give both or neither")
    if shares is None or contexts is None:
        return np.asarray((rows * rows).sum(axis=1))
    weights, around = np.asarray(shares, np.float64), np.asarray(contexts, np.float64)
    if weights.shape != rows.shape[:1] or around.shape != rows.shape or not weights.sum() > 0:
        raise DataError(
            f"information gain: shares {weights.shape} and contexts {around.shape} for vectors "
            f"{rows.shape}; expected one of each for every word, and shares above 0"
        )
    weights = weights / weights.sum()
    rows = rows - weights @ rows
    around = around - weights @ around
    covariance = around.T @ (around * weights[:, None])
    return np.asarray(((rows @ covariance) * rows).sum(axis=1) / 2)
