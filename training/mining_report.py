"""What mining kept and dropped, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

REASONS = {
    "positive": "known positives",
    "rank": "outside the rank window",
    "ratio": "too near the positive's score (max_positive_ratio)",
    "margin": "too near the positive's score (margin)",
    "max_score": "score not below max_score",
    "min_score": "score below min_score",
    "positive_text": "same text as a positive",
    "duplicate_text": "same text as an earlier candidate",
    "surplus": "fit, but enough were found",
}


class Provenance(NamedTuple):
    """Where one candidate stood and what became of it: ``kept``, or why it was dropped."""

    query: str
    document: str
    rank: int
    score: float
    reason: str


@dataclass(frozen=True, slots=True)
class MiningReport:
    """Counts over all queries; ``short`` maps a query to how many negatives it lacks.

    ``positive_share`` is the share of kept negatives that are known positives: 0, or mining failed.
    """

    queries: int
    candidates: int
    kept: int
    dropped: Mapping[str, int]
    short: Mapping[str, int]
    queries_without_hits: int
    unscored_positives: int
    queries_without_positive_score: int
    positive_share: float

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{self.kept:,} negatives for {self.queries:,} queries, "
            f"from {self.candidates:,} candidates"
        ]
        lines += [
            f"  dropped {count:,}: {REASONS.get(reason, reason)}"
            for reason, count in sorted(self.dropped.items(), key=lambda item: -item[1])
        ]
        if self.short:
            lacking = sum(self.short.values())
            lines.append(f"  {len(self.short):,} queries lack {lacking:,} negatives")
        if self.queries_without_hits:
            lines.append(f"  {self.queries_without_hits:,} queries had no candidates")
        if self.unscored_positives:
            lines.append(f"  {self.unscored_positives:,} positives have no score in the lists")
        if self.queries_without_positive_score:
            lines.append(
                f"  {self.queries_without_positive_score:,} queries have no positive with a score: "
                "no ratio or margin limit for them"
            )
        lines.append(f"  share of negatives that are known positives: {self.positive_share:g}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class MinedNegatives:
    """Negatives by query, best first; a row for every candidate; and the report."""

    negatives: Mapping[str, tuple[str, ...]]
    rows: tuple[Provenance, ...]
    report: MiningReport
