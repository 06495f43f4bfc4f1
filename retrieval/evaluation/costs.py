"""What systems cost, as columns of a results table: the command line's, and the report's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.retrieval.evaluation.table import Table

# Of a system in results.json: key, column, unit's divisor, format.
COSTS = (
    ("queries_per_second", "queries/s", 1.0, ",.0f"),
    ("index_bytes", "index MB", 1e6, ",.2f"),
    ("bytes_per_document", "bytes/doc", 1.0, ",.0f"),
    ("documents_per_second", "indexed docs/s", 1.0, ",.0f"),
    ("peak_memory_bytes", "peak MB", 1e6, ",.0f"),
)


def add_costs(table: Table, systems: Mapping[str, Mapping[str, Any]]) -> None:
    """Add a column for every cost that is known of any system, as ``results.json`` has them."""
    for part in ("p50", "p95", "p99"):
        latencies = {name: (s.get("latency_ms") or {}).get(part) for name, s in systems.items()}
        if any(value is not None for value in latencies.values()):
            table.add_column(f"{part} ms", latencies)
    for key, column, divisor, form in COSTS:
        costs = {n: s[key] / divisor for n, s in systems.items() if s.get(key) is not None}
        if costs:
            table.add_column(column, costs, form)
