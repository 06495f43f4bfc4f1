"""Approximations that leave terms out, of queries or of documents."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import sparse

from sluice.indexing.inverted.spooling.spool import Documents, Spool

Queries = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]


def pruned_queries(queries: sparse.csr_array[Any], beta: float) -> Queries:
    """Return (starts, terms, weights) of the queries' heaviest terms: a share ``beta``, rounded up.

    Of equal weights the lower term stays. The arrays are new or private: a kernel may have them.
    """
    starts = queries.indptr.astype(np.int64)
    terms, weights = queries.indices.astype(np.int64), queries.data.copy()
    if beta >= 1:
        return starts, terms, weights
    counts = np.diff(starts)
    kept = _heaviest(starts, weights, np.ceil(beta * counts).astype(np.int64))
    starts = np.concatenate([[0], np.cumsum(np.ceil(beta * counts).astype(np.int64))])
    return starts, terms[kept], weights[kept]


def heaviest_terms(spool: Spool, most: int) -> Spool:
    """Return a spool of the same documents with at most ``most`` terms each, the heaviest."""
    kept, step = Spool(), 1 << 14
    for first in range(0, len(spool), step):
        starts, terms, impacts = heaviest(
            spool.documents(first, min(first + step, len(spool))), most
        )
        shape = (len(starts) - 1, spool.terms)
        kept.append(sparse.csr_array((impacts, terms.astype(np.int64), starts), shape=shape))
    kept.terms = spool.terms
    return kept


def heaviest(documents: Documents, most: int) -> Documents:
    """Return documents with at most ``most`` terms each; of equal impacts the lower term stays."""
    starts, terms, impacts = documents
    counts = np.minimum(np.diff(starts), most)
    kept = _heaviest(starts, impacts, counts)
    return np.concatenate([[0], np.cumsum(counts)]), terms[kept], impacts[kept]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _heaviest(
    starts: NDArray[np.int64], weights: NDArray[np.float32], counts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Mark the ``counts`` heaviest entries of each row, earlier ones first."""
    kept = np.zeros(len(weights), dtype=np.bool_)
    for row in range(len(counts)):
        first, last = starts[row], starts[row + 1]
        if counts[row] >= last - first:
            kept[first:last] = True
            continue
        order = np.argsort(-weights[first:last], kind="mergesort")
        for place in order[: counts[row]]:
            kept[first + place] = True
    return kept
