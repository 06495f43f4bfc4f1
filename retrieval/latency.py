"""Latency as a user feels it: one query at a time, warm, encoding included."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import numpy as np

from retrieval.stage import Queries, SelfExcluding, Stage

ASKED = 10  # documents that a user wants


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds per query: median and 95th percentile over ``queries`` queries."""

    p50: float
    p95: float
    queries: int


def measure_latency(
    stage: Stage, queries: Queries, *, k: int = ASKED, sample: int = 200, seed: int = 13
) -> Latency | None:
    """Time ``stage`` on up to ``sample`` queries, one by one, after three to warm it up.

    A retriever alone is asked for ``k`` documents; a pipeline works to its own depths. None when
    there is nothing to time.
    """
    chosen = list(queries)
    random.Random(f"latency {seed}").shuffle(chosen)
    chosen = chosen[:sample]
    if not chosen:
        return None
    kind = SelfExcluding if isinstance(queries, SelfExcluding) else dict
    for query in chosen[:3]:
        stage.run(kind({query: queries[query]}), None, k)
    times = []
    for query in chosen:
        one = kind({query: queries[query]})
        start = time.perf_counter()
        stage.run(one, None, k)
        times.append((time.perf_counter() - start) * 1000)
    p50, p95 = np.percentile(times, [50, 95])
    return Latency(round(float(p50), 3), round(float(p95), 3), len(times))
