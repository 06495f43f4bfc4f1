"""Time our indexes against their plain counterparts, interleaved in one run, and print ratios.

    OMP_NUM_THREADS=1 python scripts/bench_index.py [documents] [sparse documents]

Dense: FlatIndex and FaissIndex("Flat") against faiss.IndexFlatIP as it comes (384 dimensions, 300
queries and single queries). Sparse: InvertedIndex against scipy's product with a partition (119
terms a document, 43 a query). The data is random: read speed from it, not quality.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import faiss
import numpy as np
from scipy import sparse

from sluice.indexing import FaissIndex, FlatIndex, InvertedIndex

ROUNDS = 5
SHIPPED_THRESHOLD = faiss.cvar.distance_compute_blas_threshold


def compare(title: str, contestants: dict[str, Callable[[], object]], queries: int) -> None:
    """Run every contestant in each round; print the median milliseconds a query and the ratio."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for round_number in range(ROUNDS + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            if round_number:  # the first warms up
                seconds[name].append(time.perf_counter() - start)
    print(f"\n{title}")
    anchor = statistics.median(next(iter(seconds.values())))
    for name, times in seconds.items():
        middle = statistics.median(times)
        print(f"  {name:<38} {1000 * middle / queries:9.3f} ms/query   {middle / anchor:7.3f}x")


def dense(documents: int) -> None:
    """Exact dense search, in a batch and one query at a time."""
    rng = np.random.default_rng(7)
    vectors = rng.standard_normal((documents, 384)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = vectors[:300] + 0.05 * rng.standard_normal((300, 384)).astype(np.float32)
    plain = faiss.IndexFlatIP(384)
    plain.add(vectors)
    flat, wrapped = FlatIndex(), FaissIndex("Flat", metric="ip")
    flat.add(vectors)
    wrapped.add(vectors)

    def as_shipped(batch: np.ndarray, k: int) -> None:
        faiss.cvar.distance_compute_blas_threshold = SHIPPED_THRESHOLD
        plain.search(batch, k)

    same = np.mean(flat.search(queries, 10).rows == wrapped.search(queries, 10).rows)
    print(f"dense, {documents:,} x 384: {same:.2%} of places equal between flat and faiss")
    for count, k in ((300, 10), (300, 1000), (1, 10)):
        batch = queries[:count]
        compare(
            f"dense, {count} queries, k={k}",
            {
                "faiss.IndexFlatIP as shipped": lambda batch=batch, k=k: as_shipped(batch, k),
                "FaissIndex('Flat')": lambda batch=batch, k=k: wrapped.search(batch, k),
                "FlatIndex": lambda batch=batch, k=k: flat.search(batch, k),
                "matrix product alone": lambda batch=batch: batch @ vectors.T,
            },
            count,
        )


def impacts(count: int, terms: int, mean: int, rng: np.random.Generator) -> sparse.csr_array:
    """Return random sparse vectors whose terms follow Zipf's law."""
    frequency = 1.0 / np.arange(1, terms + 1) ** 0.75
    drawn = rng.choice(terms, size=(count, mean), p=frequency / frequency.sum())
    indptr = np.arange(0, count * mean + 1, mean)
    weights = np.log1p(rng.exponential(size=count * mean)).astype(np.float32)
    matrix = sparse.csr_array((weights, drawn.ravel(), indptr), shape=(count, terms))
    matrix.sum_duplicates()
    return matrix


def inverted(documents: int) -> None:
    """Exact sparse search, in a batch and one query at a time."""
    rng = np.random.default_rng(11)
    corpus, queries = impacts(documents, 30_522, 119, rng), impacts(100, 30_522, 43, rng)
    by_term = sparse.csr_array(corpus.T)
    index = InvertedIndex()
    start = time.perf_counter()
    index.add(corpus)
    index.search(queries[[0]], 10)
    seconds = time.perf_counter() - start
    print(f"\nsparse, {documents:,} documents: build and first search {seconds:.2f} s")

    def by_scipy(k: int) -> None:
        for place in range(queries.shape[0]):
            scores = (queries[[place]] @ by_term).toarray()[0]
            best = np.argpartition(-scores, k)[:k]
            best[np.argsort(-scores[best])]

    for k in (10, 1000):
        compare(
            f"sparse, 100 queries, k={k}",
            {
                "scipy query x postings, partition": lambda k=k: by_scipy(k),
                "InvertedIndex, one by one": lambda k=k: [
                    index.search(queries[[place]], k) for place in range(100)
                ],
                "InvertedIndex, a batch": lambda k=k: index.search(queries, k),
            },
            100,
        )


if __name__ == "__main__":
    dense(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
    inverted(int(sys.argv[2]) if len(sys.argv) > 2 else 50_000)
