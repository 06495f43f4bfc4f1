"""What is checked of a collection, and what differs from our exact index: said in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from sluice.encoders.foundation.errors import IndexFormatError
from sluice.encoders.foundation.numbers import plural
from sluice.indexing.databases.qdrant.collection import Collection
from sluice.indexing.databases.qdrant.filters import rows_from
from sluice.indexing.databases.qdrant.settings import Settings
from sluice.indexing.hits import Hits
from sluice.indexing.live_rows import Rows

SAMPLED = 64  # rows looked up, and searched for
DEPTH = 10


def check_points(collection: Collection, live: Rows, rows: int) -> Sequence[str]:
    """Count the points and look some up; ``IndexFormatError`` where live rows are missing.

    ``rows`` are all of the state, deleted ones included.
    """
    where = f"qdrant: {collection.name}"
    stored, beyond = collection.count({}), collection.count(rows_from(rows))
    if not len(live) <= stored - beyond <= rows:
        raise IndexFormatError(
            f"{where}: {stored - beyond:,} points for {len(live):,} documents; another program "
            "changed it: rebuild"
        )
    sampled = spread(live)
    points = collection.points(sampled, vectors=True)
    for row in sampled.tolist():
        vector, payload = points.get(row, (None, {}))
        if vector is None or payload.get("row") != row:
            raise IndexFormatError(f"{where}: no vector of row {row}; rebuild")
    have = "has a point" if len(live) == 1 else "have points"
    said = [f"{plural(len(live), 'document')} {have}; {len(sampled)} looked up"]
    if left := stored - len(live):
        said.append(f"{plural(left, 'point')} that a killed change left, which no search finds")
    return said


class Searched(Protocol):
    """An index in Qdrant, as far as it is measured."""

    def documents(self, rows: Rows) -> Any:
        """Return the stored vectors of rows."""
        ...

    def search(self, vectors: Any, k: int) -> Hits:
        """Return the best rows of each query, as the settings say."""
        ...

    def search_exactly(self, vectors: Any, k: int) -> Hits:
        """Return the best rows of each query, exactly."""
        ...


def measured(index: Searched, live: Rows, *, walks: bool) -> Sequence[str]:
    """Search for stored vectors: the order of ties, and how many exact hits a graph finds."""
    sampled = spread(live)
    if not len(sampled):
        return []
    queries = index.documents(sampled)
    exact = index.search_exactly(queries, DEPTH)
    rows, scores = exact.rows, exact.scores
    tied = (scores[:, 1:] == scores[:, :-1]) & (rows[:, 1:] >= 0)
    if (rows[:, 1:][tied] <= rows[:, :-1][tied]).any():
        raise IndexFormatError("qdrant: ties are not in the order of rows; report this")
    said = [f"ties of {len(sampled)} searches are in the order of rows"]
    if walks:
        said.append(f"recall@{DEPTH} {recall(index, sampled):.3f}")
    return said


def recall(index: Searched, live: Rows) -> float:
    """Return the mean share of the exact hits that a walk finds, for stored vectors as queries."""
    queries = index.documents(spread(live))
    found, exact = index.search(queries, DEPTH), index.search_exactly(queries, DEPTH)
    pairs = [(one, other[other >= 0]) for one, other in zip(found.rows, exact.rows, strict=True)]
    return float(np.mean([np.isin(other, one).mean() for one, other in pairs if len(other)]))


def spread(live: Rows) -> Rows:
    """Return at most ``SAMPLED`` of the rows, evenly spread."""
    if len(live) <= SAMPLED:
        return live
    return live[np.linspace(0, len(live) - 1, SAMPLED).astype(np.int64)]


def differences(settings: Settings, notes: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each way in which results differ from those of our exact index."""
    said = ["exact; scores are float32 sums of Qdrant, equal in about six digits"]
    if settings.method == "hnsw":
        said = ["approximate: a walk of ef candidates along a graph (128), unless exact: true"]
        if "recall" in notes:
            said.append(f"recall@{DEPTH} {notes['recall']:.3f} against its own exact search")
    if settings.metric == "cosine":
        said.append("cosine: vectors are stored normalised")
    if settings.path:
        said.append("the folder is open in one process at a time")
    return said
