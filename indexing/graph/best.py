"""The best documents of one query so far."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sluice.indexing.hits import best_first
from sluice.indexing.live_rows import Mask, Rows

Scores: TypeAlias = NDArray[np.float32]


class Best:
    """The ``k`` best rows, and those whose score is less than ``margin`` below the k-th.

    ``visited`` counts the rows that were scored, those that may be no hits among them.
    """

    def __init__(self, k: int, margin: float = 0.0) -> None:
        self.k, self.margin = k, margin
        self.rows: Rows = np.zeros(0, np.int64)
        self.scores: Scores = np.zeros(0, np.float32)
        self.visited = 0

    def take(self, rows: Rows, scores: Scores, allowed: Mask | None) -> bool:
        """Add rows that were not there; return whether any is among the k best."""
        self.visited += len(rows)
        if allowed is not None:
            hits = allowed[rows]
            rows, scores = rows[hits], scores[hits]
        enters = len(self.rows) < self.k or bool((scores > self.scores[self.k - 1]).any())
        found = np.concatenate([self.rows, rows])
        values = np.concatenate([self.scores, scores])
        kept = min(self.k, len(found))
        if self.margin and kept:
            least = np.partition(values, len(values) - kept)[len(values) - kept]
            kept = max(kept, int((values >= least - self.margin).sum()))
        self.rows, self.scores = best_first(found, values, kept)
        return enters
