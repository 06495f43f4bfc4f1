#!/usr/bin/env python
"""Measure FAISS with a mask against scoring the kept rows one and all, by selectivity.

The figures for the constants of ``indexing/faiss/filtered_search.py``. Interleaved in one process,
one thread; times are the best of several, in ms a query, ratios are of the exact scoring.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import faiss
import numpy as np
from harness import options
from numpy.typing import NDArray

from sluice.indexing.faiss.engines import through_blas
from sluice.indexing.faiss.structure import search_parameters

SHARES = (0.002, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
K = 10
LISTS, PROBES, BEAM = 256, 16, 64

Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]


def clustered(rng: np.random.Generator, centres: Vectors, count: int) -> Vectors:
    """Return normalised vectors around the centres."""
    noise = rng.standard_normal((count, centres.shape[1]))
    vectors = centres[rng.integers(0, len(centres), count)] + 0.6 * noise
    normalised: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return normalised.astype(np.float32)


def best_of(call: Callable[[], Rows], times: int = 5) -> tuple[float, Rows]:
    """Return the shortest time of a call in seconds, and what it gave."""
    shortest = np.inf
    for _ in range(times):
        start = time.perf_counter()
        rows = call()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest, rows


def exact_rows(documents: Vectors, queries: Vectors, kept: Rows) -> Rows:
    """Score the kept rows one and all."""
    rows: Rows = kept[faiss.knn(queries, documents[kept], K, faiss.METRIC_INNER_PRODUCT)[1]]
    return rows


def found_rows(index: Any, queries: Vectors, k: int, parameters: Any) -> Rows:
    """Search in FAISS."""
    rows: Rows = index.search(queries, k, params=parameters)[1]
    return rows


def made(documents: Vectors) -> dict[str, Any]:
    """Return the indexes to compare."""
    indexes = {}
    names = ("Flat", "SQ8", "PQ32x4fs", f"IVF{LISTS},Flat", "HNSW16")
    for factory in names:
        index = faiss.index_factory(documents.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
        index.train(documents[:20_000])
        index.add(documents)
        indexes[factory] = index
    indexes[f"IVF{LISTS},Flat"].nprobe = PROBES
    indexes["HNSW16"].hnsw.efSearch = BEAM
    return indexes


def searches(kept: int, rows: int) -> list[tuple[str, str, dict[str, int]]]:
    """Return name, factory and parameters of what is measured: as it is, and widened."""
    share, lists = kept / rows, f"IVF{LISTS},Flat"
    return [
        ("Flat", "Flat", {}), ("SQ8", "SQ8", {}), ("IVF", lists, {}),
        ("IVF 16k", lists, {"nprobe": min(LISTS, max(PROBES, 16 * K * LISTS // kept))}),
        ("HNSW", "HNSW16", {}),
        ("HNSW 2k/share", "HNSW16", {"efSearch": int(max(BEAM, 2 * K / share))}),
    ]  # fmt: skip


def main() -> None:
    given = options(__doc__, {"--rows": 60_000, "--width": 128})
    faiss.omp_set_num_threads(1)
    through_blas(given.width)
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((200, given.width)).astype(np.float32)
    documents, queries = (clustered(rng, centres, count) for count in (given.rows, 64))
    indexes = made(documents)
    for batch in (1, 64):
        asked = queries[:batch]
        for share in SHARES:
            kept = np.sort(rng.choice(given.rows, int(given.rows * share), replace=False))
            mask = np.zeros(given.rows, dtype=np.bool_)
            mask[kept] = True
            selector = faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))
            spent, truth = best_of(partial(exact_rows, documents, asked, kept))
            cells = [f"exact {spent / batch * 1e3:.3f}"]
            for name, factory, parameters in searches(len(kept), given.rows):
                index = indexes[factory]
                chosen = search_parameters(index, parameters, selector)
                took, found = best_of(partial(found_rows, index, asked, K, chosen))
                recall = np.mean([np.isin(t, f).mean() for t, f in zip(truth, found, strict=True)])
                cells.append(f"{name} {took / batch * 1e3:.3f} (x{took / spent:.2f}, {recall:.2f})")
            fetched = min(given.rows, int(1.25 * K / share) + K)
            coded = indexes["PQ32x4fs"]
            took, _ = best_of(partial(found_rows, coded, asked, fetched, None))
            cells.append(f"PQ32x4fs over-fetch {took / batch * 1e3:.3f} (x{took / spent:.2f})")
            sys.stdout.write(f"batch {batch}, share {share}: {'; '.join(cells)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
