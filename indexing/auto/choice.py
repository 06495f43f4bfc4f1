"""What the autopilot measured, what it chose, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sluice.encoders.foundation.numbers import spelled_bytes
from sluice.indexing.index import Index


@dataclass(frozen=True, slots=True)
class Limits:
    """What an index has to meet; None means no limit."""

    recall: float
    k: int
    memory: int | None  # bytes
    latency_ms: float | None  # of one query

    def __str__(self) -> str:
        parts = [f"recall@{self.k} {self.recall:g}"]
        if self.memory is not None:
            parts.append(f"memory {spelled_bytes(self.memory)}")
        if self.latency_ms is not None:
            parts.append(f"latency {self.latency_ms:g} ms")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Measured:
    """One index with one setting: a row of the trade-off table.

    ``recall`` is the mean over the queries it was measured on, ``recall_low`` the lower end of its
    one-sided 95% confidence interval. Figures of a sample are extrapolated to the corpus:
    memory and build time in proportion, latency as the type grows, recall as it is.
    """

    name: str
    params: Mapping[str, Any]
    measured_on: int  # vectors
    queries: str  # "choosing" or "held-out"
    recall: float
    recall_low: float
    ms_one: float  # median of a query by itself
    ms_batch: float  # of a query among many
    memory_bytes: int
    build_seconds: float
    exact: bool
    breaks: tuple[str, ...]  # of recall, memory, latency

    @property
    def label(self) -> str:
        """Name and setting, as in a sentence."""
        setting = ", ".join(f"{name}={value}" for name, value in self.params.items())
        return f"{self.name} ({setting})" if setting else self.name


@dataclass(slots=True)
class Choice:
    """The filled index, the table of everything measured, and one sentence why."""

    index: Index
    table: list[Measured]
    chosen: Measured | None  # None where there was nothing to measure
    reason: str
    limits: Limits

    def __str__(self) -> str:
        """Return the table in markdown with the reason under it."""
        k = self.limits.k
        heads = [
            "index",
            "setting",
            "vectors",
            "queries",
            f"recall@{k}",
            "at least",
            "ms/query",
            "ms/query in batches",
            "memory",
            "build",
            "meets",
        ]
        lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|---|" + "---:|" * 6 + "---|"]
        for row in self.table:
            setting = ", ".join(f"{name}={value}" for name, value in row.params.items())
            cells = [
                f"**{row.name}**" if row is self.chosen else row.name,
                setting or "-",
                f"{row.measured_on:,}",
                row.queries,
                f"{row.recall:.4f}",
                f"{row.recall_low:.4f}",
                f"{row.ms_one:.3f}",
                f"{row.ms_batch:.3f}",
                spelled_bytes(row.memory_bytes),
                f"{row.build_seconds:.1f} s",
                "no: " + ", ".join(row.breaks) if row.breaks else "yes",
            ]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join([*lines, "", self.reason])

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the index as JSON values, for manifests."""
        return {
            "chosen": None if self.chosen is None else _json(self.chosen),
            "reason": self.reason,
            "limits": asdict(self.limits),
            "table": [_json(row) for row in self.table],
        }


def _json(row: Measured) -> dict[str, Any]:
    return {**asdict(row), "params": dict(row.params), "breaks": list(row.breaks)}
