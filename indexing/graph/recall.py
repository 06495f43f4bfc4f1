"""Measured recall: the share of the exhaustive best that a walk finds, noted in the index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sluice.encoders.foundation.numbers import is_number
from sluice.indexing.hits import Hits

DEPTHS = (10, 100)
QUERIES = 100  # to measure with, at most


@dataclass(frozen=True, slots=True)
class GraphRecall:
    """What share of the exhaustive best ``k`` a walk found, on average over sampled queries.

    ``visited`` is the number of documents that a walk for 100 hits scored, on average.
    ``added`` and ``deleted`` documents changed the index since.
    """

    at_10: float
    at_100: float
    visited: float
    queries: int
    documents: int
    added: int = 0
    deleted: int = 0

    def changed(self, added: int = 0, deleted: int = 0) -> GraphRecall:
        """Return the note after a change of the index."""
        return replace(self, added=self.added + added, deleted=self.deleted + deleted)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, note: Any) -> GraphRecall | None:
        """Return the recall a saved note tells of; None where there is none, or not a whole one."""
        if not isinstance(note, Mapping):
            return None
        facts: dict[str, Any] = {name: note.get(name) for name in cls.__slots__}
        return cls(**facts) if all(map(is_number, facts.values())) else None

    def __str__(self) -> str:
        """Return a line for reports."""
        parts = [
            f"recall@10 {self.at_10:.3f}, @100 {self.at_100:.3f} of exhaustive, on {self.queries} "
            f"queries; {self.visited:,.0f} of {self.documents:,} documents scored"
        ]
        for name in ("added", "deleted"):
            if count := getattr(self, name):
                parts.append(f"{count:,} {name} since")
        return "; ".join(parts)


def mean_share(found: Hits, exact: Hits, k: int) -> float:
    """Return the mean share of each line's exhaustive best ``k`` that was found.

    A hit counts if its score reaches that of the exhaustive k-th best.
    """
    shares = []
    for place, rows in enumerate(exact.rows):
        best = exact.scores[place][rows >= 0][:k]
        if len(best):
            own = found.scores[place][found.rows[place] >= 0][:k]
            shares.append(int((own >= best[-1]).sum()) / len(best))
    return float(np.mean(shares)) if shares else 1.0
