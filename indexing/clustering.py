"""Clusters of sparse documents, ordered by clusters of clusters: documents near their like.

Spherical k-means from sampled documents, in which a document meets only the centroids that share
one of its terms. The centroids are themselves documents and are ordered in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
from numba import config, njit
from numpy.typing import NDArray

from indexing.spool import Documents

MEMBERS: Final = 16  # documents of a cluster on average
ROUNDS: Final = 2  # of assigning and averaging
CENTROID_TERMS: Final = 64  # of a centroid, the heaviest
CHUNK: Final = 1 << 12  # documents that a thread assigns at a time


def cluster_order(documents: Documents, width: int, seed: int) -> NDArray[np.uint32]:
    """Return documents, none of them empty, in the order of their clusters, nearest first.

    The result does not depend on the number of threads.
    """
    with ThreadPoolExecutor(int(config.NUMBA_NUM_THREADS)) as pool:
        return _ordered(_normalised(documents), width, np.random.default_rng(seed), pool)


def _ordered(
    documents: Documents, width: int, random: np.random.Generator, pool: ThreadPoolExecutor
) -> NDArray[np.uint32]:
    count = len(documents[0]) - 1
    if count <= MEMBERS:
        return np.arange(count, dtype=np.uint32)
    clusters = -(-count // MEMBERS)
    centroids = _selected(documents, np.sort(random.choice(count, clusters, replace=False)))
    nearest, similarity = np.empty(count, np.uint32), np.empty(count, np.float32)
    for rounds in range(ROUNDS, 0, -1):
        lists = _inverted(*centroids, width)
        assigned = [
            pool.submit(
                _assign, *documents, *lists, clusters,
                first, min(first + CHUNK, count), nearest, similarity,
            )
            for first in range(0, count, CHUNK)
        ]  # fmt: skip
        for future in assigned:
            future.result()
        if rounds > 1:
            members = np.argsort(nearest, kind="stable")
            ends = np.cumsum(np.bincount(nearest, minlength=clusters + 1))
            centroids = _averaged(*documents, members, ends[:clusters], width)
    rank = np.full(clusters + 1, clusters)
    rank[_ordered(centroids, width, random, pool)] = np.arange(clusters)
    return np.lexsort((-similarity, rank[nearest])).astype(np.uint32)


def _selected(documents: Documents, rows: NDArray[np.int64]) -> Documents:
    starts, terms, weights = documents
    counts = starts[rows + 1] - starts[rows]
    ends = np.cumsum(counts)
    places = np.arange(ends[-1]) + np.repeat(starts[rows] - ends + counts, counts)
    return np.concatenate([[0], ends]), terms[places], weights[places]


@njit(cache=True, nogil=True)
def _normal(starts, weights):
    for row in range(len(starts) - 1):
        total = 0.0
        for i in range(starts[row], starts[row + 1]):
            total += weights[i] * weights[i]
        for i in range(starts[row], starts[row + 1]):
            weights[i] /= np.sqrt(total)


def _normalised(documents):
    starts, terms, weights = documents
    frequencies = np.bincount(terms)
    idf = (
        np.log1p(len(starts) / (1 + frequencies)).astype(np.float32)
        if IDF
        else np.ones(len(frequencies), np.float32)
    )
    weights = weights * idf[terms]
    _normal(starts, weights)
    return starts, terms, weights


IDF = True


@njit(cache=True, nogil=True)
def _inverted(starts, terms, weights, width):
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


@njit(cache=True, nogil=True)
def _assign(
    starts, terms, weights, first_of, centroids, values, clusters, first, last, nearest, similarity
):
    """Find the most similar centroid of documents ``[first, last)``, of equal ones the first."""
    scores = np.zeros(clusters, np.float32)
    for document in range(first, last):
        for i in range(starts[document], starts[document + 1]):
            term, weight = terms[i], weights[i]
            for j in range(first_of[term], first_of[term + 1]):
                scores[centroids[j]] += weight * values[j]
        best, most = clusters, np.float32(0)
        for centroid in range(clusters):
            if scores[centroid] > most:
                best, most = centroid, scores[centroid]
            scores[centroid] = 0
        nearest[document], similarity[document] = best, most


@njit(cache=True, nogil=True)
def _averaged(starts, terms, weights, members, ends, width):
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
