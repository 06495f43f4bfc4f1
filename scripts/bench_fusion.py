"""Measure fusion: microseconds of processor time a query, of two lists that overlap.

python scripts/bench_fusion.py
"""

from __future__ import annotations

import gc
import time

import numpy as np

from sluice.retrieval.pipelines.fusion.fusion import METHODS, Fusion
from sluice.retrieval.runs.run import Ranking, Run


def lists(depth: int, queries: int) -> list[Run]:
    """Two runs of random ids and falling scores; two thirds of a list are in the other one."""
    rng = np.random.default_rng(0)
    runs: list[dict[str, Ranking]] = [{}, {}]
    for query in range(queries):
        pool = rng.choice(50_000, int(depth * 1.5), replace=False)
        for run in runs:
            ids = [f"doc{number}" for number in rng.permutation(pool)[:depth]]
            run[f"q{query}"] = Ranking(
                ids, np.sort(rng.normal(size=depth))[::-1].astype(np.float32)
            )
    return [Run(run) for run in runs]


def main() -> None:
    """Print the least of 20 times for each method that is ours, at 100 and 1,000 candidates."""
    gc.disable()
    for depth, queries in ((100, 300), (1000, 30)):
        runs = lists(depth, queries)
        for method in METHODS:
            times = []
            for _ in range(20):
                start = time.process_time()
                Fusion(method).fuse(runs)
                times.append(time.process_time() - start)
            print(f"{depth:>5,} {method:12} {min(times) / queries * 1e6:7.1f} us")


if __name__ == "__main__":
    main()
