"""Checks that a table is as it was saved, and measures what its graph finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.errors import IndexFormatError
from sluice.indexing.databases.index import DatabaseIndex
from sluice.indexing.databases.pgvector.connection import connected
from sluice.indexing.databases.pgvector.states import States
from sluice.indexing.databases.pgvector.table import Table
from sluice.indexing.live_rows import LiveRows, Rows

SAMPLE = "sample-{}.npy"  # rows, and their vectors in binary form, one after the other
SAMPLED = 64
DEPTH = 10


def write_sample(folder: Path, table: Table, connection: Any, live: LiveRows) -> Rows:
    """Write some vectors of a table into the folder, for ``verified``; return their rows."""
    allowed = live.allowed()
    rows = np.arange(live.total) if allowed is None else np.flatnonzero(allowed)
    if len(rows) > SAMPLED:
        rows = rows[np.linspace(0, len(rows) - 1, SAMPLED).astype(np.int64)]
    stored = table.vectors(connection, rows)
    data = [stored[row] for row in rows.tolist()]
    ends = np.cumsum([0, *map(len, data)])
    parts = {"rows": rows, "ends": ends, "data": np.frombuffer(b"".join(data), np.uint8)}
    for name, values in parts.items():
        np.save(folder / SAMPLE.format(name), values)
    return rows


def verified(
    index: DatabaseIndex, table: Table, folder: Path, states: States, *, graph: bool
) -> list[str]:
    """Check a table against the folder of a saved state; return what was checked.

    ``graph`` is whether there is one. ``IndexFormatError`` for other counts, other vectors, and
    searches out of order.
    """
    rows, ends, data = (
        open_array(folder / SAMPLE.format(name), dtype, (None,))
        for name, dtype in (("rows", np.int64), ("ends", np.int64), ("data", np.uint8))
    )
    with connected(table.dsn) as connection:
        found, _ = table.status(connection)
        counted = table.counts(connection, index.rows, states.number)
        stored = table.vectors(connection, rows)
    if found not in (states.mark, states.former):
        raise _differs(table, "another copy of this folder has changed it since")
    expected = (index.rows, index.rows - len(index))
    if counted != expected:
        raise _differs(
            table,
            f"it has {counted[0]:,} rows, {counted[1]:,} of them deleted; this state has "
            f"{expected[0]:,} and {expected[1]:,}",
        )
    for place, row in enumerate(rows.tolist()):
        if stored.get(row) != data[ends[place] : ends[place + 1]].tobytes():
            raise _differs(table, f"the vector of row {row} is another than was saved")
    lines = [f"{counted[0]:,} rows", f"the vectors of {len(rows):,} of them"]
    if len(rows):
        hits = index.search_exactly(index.documents(rows), DEPTH)
        better, later = (
            hits.scores[:, 1:] < hits.scores[:, :-1],
            hits.rows[:, 1:] > hits.rows[:, :-1],
        )
        if not (better | later | (hits.rows[:, 1:] < 0)).all():
            raise _differs(table, "its hits are not in the order of score and row")
        lines.append("the order of ties")
        if graph:
            lines.append(f"recall@{DEPTH} {measured_recall(index, rows):.3f} of the graph")
    return lines


def measured_recall(index: DatabaseIndex, sampled: Rows) -> float:
    """Return how many of the exact nearest of stored vectors the graph finds, from 0 to 1."""
    queries = index.documents(sampled)
    walked, exact = index.search(queries, DEPTH), index.search_exactly(queries, DEPTH)
    found = [
        np.isin(other[other >= 0], one).mean()
        for one, other in zip(walked.rows, exact.rows, strict=True)
        if (other >= 0).any()
    ]
    return float(np.mean(found)) if found else 1.0


def _differs(table: Table, what: str) -> IndexFormatError:
    return IndexFormatError(
        f"pgvector: {table.name}: {what}; restore the table from a copy, or rebuild the index"
    )
