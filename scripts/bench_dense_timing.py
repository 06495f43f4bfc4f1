"""Timing and truth for ``bench_dense.py``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from bench_dense_data import Collection
    from bench_dense_engines import Engine

Dense = NDArray[np.float32]
BLOCK = 8_192  # documents scored at a time
LEAST = 0.05  # seconds of one measurement: short answers are repeated
CHECKED = 100  # queries whose answers are compared with the truth


def brute_force(collection: Collection, k: int) -> NDArray[np.int64]:
    """Return the true rows ``[queries, k]`` by float64 sums rounded to float32, ties by row."""
    queries = collection.queries.astype(np.float64)
    rows = np.zeros((len(queries), 0), dtype=np.int64)
    scores = np.zeros((len(queries), 0), dtype=np.float32)
    for start in range(0, len(collection.documents), BLOCK):
        part = collection.documents[start : start + BLOCK].astype(np.float64)
        # Equal documents may differ in the last bits of a BLAS sum; rounded, next to never.
        near = (queries @ part.T).astype(np.float32)
        numbers = np.broadcast_to(np.arange(start, start + len(part)), near.shape)
        scores, rows = np.hstack([scores, near]), np.hstack([rows, numbers])
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        scores, rows = (np.take_along_axis(each, order, axis=1) for each in (scores, rows))
    return rows


def measured(
    engines: dict[str, Engine], queries: Dense, size: int, k: int, truth: NDArray[np.int64],
    rounds: int, threads: int,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Time every engine in turn on batches of a size; the first engine is what ratios are to.

    On one thread by the processor's time: that of others who use it does not count.
    Up to ``CHECKED`` queries (at least one batch) are answered and compared with the truth.
    """
    checked = max(size, min(CHECKED, len(queries)) // size * size)
    batches = [queries[start : start + size] for start in range(0, checked, size)]
    times: dict[str, list[float]] = {name: [] for name in engines}
    figures: dict[str, dict[str, Any]] = {}
    for name, search in engines.items():
        rows = np.concatenate([search(batch, k) for batch in batches])
        same = (rows == truth[:checked]).all(axis=1)
        figures[name] = {"checked": checked, "identical": int(same.sum())}
        figures[name]["recall"] = recalled(rows, truth[:checked])
    clock = time.process_time if threads == 1 else time.perf_counter
    for turn in range(rounds):
        for name, search in engines.items():
            begun, answers = clock(), 0
            while not answers or clock() - begun < LEAST:
                search(batches[(turn + answers) % len(batches)], k)
                answers += 1
            times[name].append((clock() - begun) / answers)
    base = np.array(next(iter(times.values())))
    for name, spent in times.items():
        figures[name]["ms"] = float(np.median(spent)) * 1e3
        figures[name]["ratio"] = float(np.median(base / np.array(spent)))
    return figures


def recalled(found: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    """Return the mean share of the true rows that were found."""
    pairs = zip(found, truth, strict=True)
    return float(np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in pairs]))
