"""Measures latency as a user feels it: one query at a time, warm, encoding included."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sluice.retrieval.pipelines.operators import Cut, Then
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.pipelines.tracing import Span, tracing
from sluice.retrieval.runs.queries import Queries, SelfExcluding

ASKED = 10  # documents that a user looks at


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds per query: percentiles over ``queries`` queries.

    ``stages`` has the percentiles of each stage's own time, without that of the stages inside it,
    in the order they end; repeated names are numbered.
    """

    p50: float
    p95: float
    p99: float
    queries: int
    stages: dict[str, dict[str, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        figures = {"p50": self.p50, "p95": self.p95, "p99": self.p99}
        return {**figures, "queries": self.queries, "stages": self.stages}

    @classmethod
    def from_dict(cls, figures: dict[str, Any]) -> Latency:
        """Return the latency that ``to_dict`` returned the figures of."""
        return cls(**figures)


def measure_latency(
    stage: Stage,
    queries: Queries,
    *,
    k: int = ASKED,
    sample: int = 200,
    traced: int = 0,
    seed: int = 13,
) -> Latency | None:
    """Time ``stage`` on up to ``sample`` queries, one by one, after three to warm it up.

    A retriever alone searches ``k`` documents; a pipeline works to its own depths. Its stages are
    timed on the first ``traced`` of these queries. None without queries.
    """
    chosen = list(queries)
    random.Random(f"latency {seed}").shuffle(chosen)
    chosen = chosen[:sample]
    if not chosen:
        return None
    for query in chosen[:3]:
        stage.run(alone(queries, query), None, k)
    times = []
    for query in chosen:
        one = alone(queries, query)
        start = time.perf_counter()
        stage.run(one, None, k)
        times.append((time.perf_counter() - start) * 1000)
    # Separately: a traced stage notes facts, which takes time.
    stages: dict[str, list[float]] = defaultdict(list)
    for query in chosen[:traced]:
        with tracing() as spans:
            stage.run(alone(queries, query), None, k)
        for name, seconds in _stages(spans):
            stages[name].append(1000 * seconds)
    if len(stages) < 2:
        stages.clear()  # of a single stage the total is enough
    parts = {name: _percentiles(spent) for name, spent in stages.items()}
    return Latency(**_percentiles(times), queries=len(times), stages=parts)


def alone(queries: Queries, query: str) -> Queries:
    """Return one of the queries, of the same kind."""
    kind = SelfExcluding if isinstance(queries, SelfExcluding) else dict
    return kind({query: queries[query]})


def _stages(spans: Sequence[Span]) -> list[tuple[str, float]]:
    """Return the name of each stage that does something of its own, and its seconds."""
    seen: Counter[str] = Counter()
    times = []
    for span in _working(spans):
        name = span.stage.name
        seen[name] += 1
        number = f" #{seen[name]}" if seen[name] > 1 else ""
        times.append((name + number, span.own_seconds))
    return times


def _working(spans: Sequence[Span]) -> Iterator[Span]:
    """Yield all spans but those of ``>>`` and ``%``, which do nothing themselves."""
    for span in spans:
        yield from _working(span.inner)
        if not isinstance(span.stage, Then | Cut):
            yield span


def _percentiles(milliseconds: Sequence[float]) -> dict[str, float]:
    values = np.percentile(milliseconds, [50, 95, 99])
    names = ("p50", "p95", "p99")
    return {name: round(float(value), 3) for name, value in zip(names, values, strict=True)}
