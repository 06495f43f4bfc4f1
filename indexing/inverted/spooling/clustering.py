"""Orders sparse documents by clusters, and clusters by clusters of them.

Spherical k-means from sampled documents, in which a document meets only the centroids that share
one of its terms. Centroids are ordered as documents are; so are the documents of large clusters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sluice.indexing.inverted.spooling.spool import Documents
from sluice.indexing.kernels.calls import build_pool

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

MEMBERS: Final = 32  # documents of a cluster on average: two blocks
MOST_CLUSTERS: Final = 2048  # found at once, which bounds what a document is compared with
LARGE: Final = 4 * MEMBERS  # documents of a cluster that is divided again
DEPTH: Final = 3  # of clusters within clusters at most
CENTROID_TERMS: Final = 64  # of a centroid, the heaviest
CHUNK: Final = 1 << 12  # documents that a thread assigns at a time


def cluster_order(documents: Documents, width: int, seed: int) -> NDArray[np.uint32]:
    """Return documents in the order of their clusters, the nearest to the centroid first.

    Impacts are to be positive; those of ``documents`` are scaled in place to unit length. The
    result does not depend on the number of threads. A document costs about as many additions as
    ``MOST_CLUSTERS`` centroids have postings of its terms, twice.
    """
    _normalise(documents[0], documents[2])
    with build_pool() as pool:
        return _ordered(documents, width, np.random.default_rng(seed), pool, DEPTH)


def _ordered(
    documents: Documents,
    width: int,
    random: np.random.Generator,
    pool: ThreadPoolExecutor,
    depth: int,
) -> NDArray[np.uint32]:
    count = len(documents[0]) - 1
    if count <= MEMBERS:
        return np.arange(count, dtype=np.uint32)
    clusters = min(-(-count // MEMBERS), MOST_CLUSTERS)
    sample = np.sort(random.choice(count, clusters, replace=False))
    nearest, _ = _assigned(documents, _selected(documents, sample), width, pool)
    members = np.argsort(nearest, kind="stable")
    ends = np.cumsum(np.bincount(nearest, minlength=clusters + 1))
    centroids = _averaged(*documents, members, ends[:clusters], width)
    nearest, similarity = _assigned(documents, centroids, width, pool)
    rank = np.full(clusters + 1, clusters)
    rank[_ordered(centroids, width, random, pool, depth)] = np.arange(clusters)
    order = np.lexsort((-similarity, rank[nearest])).astype(np.uint32)
    sizes = np.bincount(rank[nearest], minlength=clusters + 1)
    ends = np.cumsum(sizes)
    most = np.full(clusters + 1, LARGE)
    most[clusters] = MEMBERS  # those like no centroid do not form a cluster yet
    for cluster in np.flatnonzero((sizes > most) & (sizes < count)) if depth > 1 else ():
        part = order[ends[cluster] - sizes[cluster] : ends[cluster]]
        inner = _selected(documents, part)
        part[:] = part[_ordered(inner, width, random, pool, depth - 1)]
    return order


def _assigned(
    documents: Documents, centroids: Documents, width: int, pool: ThreadPoolExecutor
) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """Return each document's most similar centroid and the similarity.

    A document that shares no term with any has the number of the centroids, and 0.
    """
    count, clusters = len(documents[0]) - 1, len(centroids[0]) - 1
    nearest, similarity = np.empty(count, np.uint32), np.empty(count, np.float32)
    lists = _inverted(*centroids, width)

    def assign(first: int) -> None:
        last = min(first + CHUNK, count)
        _assign(*documents, *lists, clusters, first, last, nearest, similarity)

    list(pool.map(assign, range(0, count, CHUNK)))
    return nearest, similarity


def _selected(documents: Documents, rows: NDArray[np.integer[Any]]) -> Documents:
    starts, terms, weights = documents
    counts = starts[rows + 1] - starts[rows]
    ends = np.cumsum(counts)
    places = np.arange(ends[-1]) + np.repeat(starts[rows] - ends + counts, counts)
    return np.concatenate([[0], ends]), terms[places], weights[places]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _normalise(starts: NDArray[np.int64], weights: NDArray[np.float32]) -> None:
    for row in range(len(starts) - 1):
        total = 0.0
        for i in range(starts[row], starts[row + 1]):
            total += weights[i] * np.float64(weights[i])
        for i in range(starts[row], starts[row + 1]):
            weights[i] /= np.sqrt(total)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _inverted(
    starts: NDArray[np.int64],
    terms: NDArray[np.uint32],
    weights: NDArray[np.float32],
    width: int,
) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.float32]]:
    """Return the centroids by term: (starts of the terms, centroids, weights)."""
    places = np.zeros(width + 1, np.int64)
    for i in range(len(terms)):
        places[terms[i] + 1] += 1
    places = np.cumsum(places)
    first = places.copy()
    centroids, values = np.empty(len(terms), np.uint32), np.empty(len(terms), np.float32)
    for centroid in range(len(starts) - 1):
        for i in range(starts[centroid], starts[centroid + 1]):
            place = places[terms[i]]
            centroids[place], values[place] = centroid, weights[i]
            places[terms[i]] = place + 1
    return first, centroids, values


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _assign(
    starts: NDArray[np.int64],
    terms: NDArray[np.uint32],
    weights: NDArray[np.float32],
    list_starts: NDArray[np.int64],
    centroids: NDArray[np.uint32],
    values: NDArray[np.float32],
    clusters: int,
    first: int,
    last: int,
    nearest: NDArray[np.uint32],
    similarity: NDArray[np.float32],
) -> None:
    """Find the most similar centroid of documents ``[first, last)``, of equal ones the first."""
    scores = np.zeros(clusters, np.float32)
    for document in range(first, last):
        for i in range(starts[document], starts[document + 1]):
            term, weight = terms[i], weights[i]
            for j in range(list_starts[term], list_starts[term + 1]):
                scores[centroids[j]] += weight * values[j]
        best, most = clusters, np.float32(0)
        for centroid in range(clusters):
            if scores[centroid] > most:
                best, most = centroid, scores[centroid]
            scores[centroid] = 0
        nearest[document], similarity[document] = best, most


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _averaged(
    starts: NDArray[np.int64],
    terms: NDArray[np.uint32],
    weights: NDArray[np.float32],
    members: NDArray[np.int64],
    ends: NDArray[np.int64],
    width: int,
) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.float32]]:
    """Return the normalised sums of the clusters' documents, cut to their heaviest terms."""
    clusters = len(ends)
    sums, touched = np.zeros(width, np.float32), np.empty(width, np.uint32)
    out_starts = np.zeros(clusters + 1, np.int64)
    out_terms = np.empty(clusters * CENTROID_TERMS, np.uint32)
    out_weights = np.empty(clusters * CENTROID_TERMS, np.float32)
    filled = 0
    for cluster in range(clusters):
        used = 0
        for at in range(ends[cluster - 1] if cluster else 0, ends[cluster]):
            for i in range(starts[members[at]], starts[members[at] + 1]):
                term = terms[i]
                if weights[i] == 0:
                    continue  # underflow; would list the term twice
                if sums[term] == 0:
                    touched[used] = term
                    used += 1
                sums[term] += weights[i]
        present = touched[:used]
        heaviest = np.argsort(-sums[present], kind="mergesort")[:CENTROID_TERMS]
        total = np.float32(0)
        for place in heaviest:
            total += sums[present[place]] ** 2
        for place in heaviest:
            out_terms[filled] = present[place]
            out_weights[filled] = sums[present[place]] / np.sqrt(total)
            filled += 1
        out_starts[cluster + 1] = filled
        sums[present] = 0
    return out_starts, out_terms[:filled].copy(), out_weights[:filled].copy()
