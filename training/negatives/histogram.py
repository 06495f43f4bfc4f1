"""Counts of numbers between edges, for reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 10


@dataclass(frozen=True, slots=True)
class Histogram:
    """``counts[i]`` numbers in ``edges[i] <= x < edges[i + 1]``; the last edge is infinite."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def over(cls, values: NDArray[Any], edges: Sequence[float]) -> Histogram:
        """Count values between edges; those outside the edges are counted at the ends."""
        inner = np.asarray(edges[1:-1], np.float64)
        places = np.searchsorted(inner, values, side="right")
        counts = np.bincount(places, minlength=len(edges) - 1)
        return cls(tuple(float(edge) for edge in edges), tuple(counts.tolist()))

    @classmethod
    def of_counts(cls, values: NDArray[np.integer]) -> Histogram:
        """Count whole numbers from 0 in ten bins at most, each as wide as the others."""
        top = int(values.max(initial=0)) + 1
        width = -(-top // BINS)
        return cls.over(values, list(range(0, top + width, width)))

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {"edges": list(self.edges), "counts": list(self.counts)}

    def __str__(self) -> str:
        """The bins that are not empty, such as ``0-9: 312, 10-19: 40``."""
        whole = all(float(edge).is_integer() for edge in self.edges)
        bins = zip(self.edges, self.edges[1:], self.counts, strict=False)
        return ", ".join(f"{_spelled(low, high, whole)}: {n:,}" for low, high, n in bins if n)


def _spelled(low: float, high: float, whole: bool) -> str:
    if not whole:
        return f"{low:.2f}-{high:.2f}"
    return f"{low:.0f}" if high - low == 1 else f"{low:.0f}-{high - 1:.0f}"
