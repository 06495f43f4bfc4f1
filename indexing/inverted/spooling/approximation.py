"""Leaves light terms out of queries and documents, and measures what that costs."""

from __future__ import annotations

import logging
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
    kept = heaviest_places(starts, weights, np.ceil(beta * counts).astype(np.int64))
    starts = np.concatenate([[0], np.cumsum(np.ceil(beta * counts).astype(np.int64))])
    return starts, terms[kept], weights[kept]


def heaviest_terms(spool: Spool, most: int) -> Spool:
    """Return a spool of the same documents with at most ``most`` terms each, the heaviest."""
    pruned, step = Spool(), 1 << 14
    for first in range(0, len(spool), step):
        starts, terms, impacts = heaviest(
            spool.documents(first, min(first + step, len(spool))), most
        )
        shape = (len(starts) - 1, spool.terms)
        pruned.append(sparse.csr_array((impacts, terms.astype(np.int64), starts), shape=shape))
    pruned.terms = spool.terms
    return pruned


def heaviest(documents: Documents, most: int) -> Documents:
    """Return documents with at most ``most`` terms each; of equal impacts the lower term stays."""
    starts, terms, impacts = documents
    counts = np.minimum(np.diff(starts), most)
    kept = heaviest_places(starts, impacts, counts)
    return np.concatenate([[0], np.cumsum(counts)]), terms[kept], impacts[kept]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def heaviest_places(
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


log = logging.getLogger("sluice")

QUERIES = 32  # documents that serve as queries
QUERY_TERMS = 24  # their heaviest terms
SAMPLE = 1 << 15  # documents searched
DEPTH = 10
FEWEST = 256
SAMPLED = 64  # real queries of a search whose overlap is measured


def log_overlap(label: str, rows: NDArray[np.int64], exact: NDArray[np.int64]) -> float:
    """Log and return the mean share of the exact rows among ``rows``; lines are queries."""
    shares = [
        len(np.intersect1d(a[a >= 0], b[b >= 0])) / max(int(np.count_nonzero(b >= 0)), 1)
        for a, b in zip(rows, exact, strict=False)
    ]
    mean = float(np.mean(shares or [1.0]))
    queries = "1 query" if len(shares) == 1 else f"{len(shares)} queries"
    log.info("%s: overlap@%d with exact %.3f (%s)", label, exact.shape[1], mean, queries)
    return mean


def measured_overlap(spool: Spool, pruned: Spool | None, label: str) -> float:
    """Log and return the share of the exact top 10 that ``pruned`` finds; None is 8-bit rounding.

    Queries are the heaviest terms of documents, spread over the spool; searched is one stretch of
    it. Only what is approximated is measured: the same rows with other impacts.
    """
    documents = min(len(spool), SAMPLE)
    if documents < FEWEST:  # not worth a log line, as after small additions
        return 1.0
    first = (len(spool) - documents) // 2
    exact = spool.documents(first, first + documents)
    if pruned is None:
        other = (exact[0], exact[1], _rounded(exact[1], exact[2]))
    else:
        other = pruned.documents(first, first + documents)
    queries = _queries(spool, min(QUERIES, documents))
    return log_overlap(label, _top(other, queries), _top(exact, queries))


def _rounded(terms: NDArray[np.uint32], impacts: NDArray[np.float32]) -> NDArray[np.float32]:
    peaks = np.zeros(int(terms.max(initial=0)) + 1, dtype=np.float32)
    np.maximum.at(peaks, terms, impacts)
    scales = np.maximum(peaks / np.float32(255), np.finfo(np.float32).tiny)[terms]
    return np.asarray(np.clip(np.rint(impacts / scales), 1, 255) * scales, dtype=np.float32)


def _queries(spool: Spool, count: int) -> list[tuple[NDArray[np.uint32], NDArray[np.float32]]]:
    chosen = np.linspace(0, len(spool) - 1, count).astype(int)
    return [heaviest(spool.documents(int(row), int(row) + 1), QUERY_TERMS)[1:] for row in chosen]


def _top(
    documents: Documents, queries: list[tuple[NDArray[np.uint32], NDArray[np.float32]]]
) -> NDArray[np.int64]:
    starts, terms, impacts = documents
    columns_used = np.unique(np.concatenate([columns for columns, _ in queries]))
    if not len(columns_used):
        columns_used = np.zeros(1, dtype=np.uint32)
    places = np.minimum(np.searchsorted(columns_used, terms), len(columns_used) - 1)
    shared = columns_used[places] == terms
    ends = np.concatenate([[0], np.cumsum(shared)])[starts]
    part = (impacts[shared], places[shared], ends)
    matrix = sparse.csr_array(part, shape=(len(starts) - 1, len(columns_used)))
    table = np.zeros((len(columns_used), len(queries)), dtype=np.float32)
    for place, (columns, weights) in enumerate(queries):
        table[np.searchsorted(columns_used, columns), place] = weights
    scores = matrix @ table
    best = [np.lexsort((np.arange(len(line)), -line))[:DEPTH] for line in scores.T]
    return np.array(best, dtype=np.int64)
