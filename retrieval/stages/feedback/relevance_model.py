"""Relevance models over sparse vectors: which terms the documents that were found are about."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Sparse: TypeAlias = "sparse.csr_array[Any]"  # a text: scipy below 1.15 has no [Any]
Weights = NDArray[np.float64]


def heaviest(matrix: Sparse, count: int, first: Weights | None = None) -> Sparse:
    """Return the matrix with the ``count`` heaviest entries of each row, none of them 0.

    Of entries that tie those with the larger ``first`` of their column stay, then the lower column.
    """
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    keys = [matrix.indices, -matrix.data, rows]
    if first is not None:
        keys.insert(1, -first[matrix.indices])
    order = np.lexsort(keys)
    places = np.arange(len(order)) - matrix.indptr[rows]
    kept = np.sort(order[(places < count) & (matrix.data[order] > 0)])
    starts = np.searchsorted(rows[kept], np.arange(matrix.shape[0] + 1))
    found = matrix.data[kept], matrix.indices[kept], starts
    return sparse.csr_array(found, shape=matrix.shape)


def shares(matrix: Sparse) -> Sparse:
    """Return the matrix with rows that sum to 1; a row of zeros stays one."""
    sums = np.asarray(matrix.sum(axis=1), dtype=np.float64)
    each = np.repeat(np.where(sums > 0, sums, 1.0), np.diff(matrix.indptr))
    data = matrix.data.astype(np.float64) / each
    return sparse.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def relevance_model(
    documents: Sparse, weights: Sparse, terms: int, first: Weights | None = None
) -> Sparse:
    """Return each query's ``P(t|R)``: its ``terms`` best terms, in rows that sum to 1.

    ``documents`` ``[m, width]`` hold what the terms count in the feedback documents; ``weights``
    ``[n, m]`` is what each document counts for each query, standing for P(q|d). Of a document its
    ``terms`` heaviest count, as shares of their sum; the weighted sums are cut to the ``terms``
    best again. ``first`` decides ties, as in ``heaviest``. The result is ``[n, width]``, float64.
    (Lavrenko and Croft, 2001, equation 12; cut as Anserini's RM3 does.)
    """
    probabilities = shares(heaviest(documents, terms, first))
    summed: Sparse = sparse.csr_array(weights.astype(np.float64) @ probabilities)
    summed.sort_indices()
    return shares(heaviest(summed, terms, first))


def interpolated(
    queries: Sparse, model: Sparse, original_weight: float, lengths: Weights, scale: Weights | None
) -> Sparse:
    """Return ``w q + (1 - w) |q| P(.|R)``, float64: RM3's mixture on the scale of the query.

    ``lengths`` ``[n]`` is |q|, the sum of what the query's terms count; ``scale`` ``[width]`` is
    what a count is multiplied by in a query (idf), 1 without. Queries without a model stay what
    they were. (Abdul-Jaleel et al., 2004, equation 10, times |q|, which changes no ranking.)
    """
    known = np.diff(model.indptr) > 0
    own = np.where(known, original_weight, 1.0)
    added = np.where(known, (1.0 - original_weight) * lengths, 0.0)
    first, second = queries.astype(np.float64), model.copy()
    first.data *= np.repeat(own, np.diff(first.indptr))
    second.data *= np.repeat(added, np.diff(second.indptr))
    if scale is not None:
        second.data *= scale[second.indices]
    mixed: Sparse = sparse.csr_array(first + second)
    mixed.eliminate_zeros()
    mixed.sort_indices()
    return mixed
