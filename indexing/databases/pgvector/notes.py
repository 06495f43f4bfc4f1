"""What differs between a search in pgvector and our exact indexes: said when it is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sluice.indexing.databases.pgvector.search import EF_SEARCH, MOST_EF, SCANNED
from sluice.indexing.databases.pgvector.settings import Column, Settings


def differences(
    settings: Settings, column: Column | None, notes: Mapping[str, Any], lost: Sequence[float]
) -> list[str]:
    """Return a sentence for each way in which results differ from those of our exact index."""
    said = []
    if settings.method == "exact":
        said.append("exact; scores are float32 sums of the database, equal in about six digits")
    else:
        said.append(
            f"approximate: a search walks a graph with ef_search {EF_SEARCH} candidates (at most "
            f"{MOST_EF:,}), with a filter until {SCANNED:,} vectors are scanned (max_scan_tuples);"
            " a query with fewer than k hits by then is scored with all rows"
        )
        if "recall" in notes:
            said.append(
                f"recall@10 {notes['recall']:.3f} against the exact search of the same table, "
                "stored vectors as queries"
            )
    if column == "halfvec":
        said.append("vectors are stored in float16: scores are equal in about three digits")
    if column != "sparsevec" and settings.metric == "cosine":
        said.append("cosine: vectors are stored normalised")
    if lost[0] > 0:
        said.append(
            f"prune: {settings.prune} dropped {lost[0] / lost[1]:.2%} of the weight of all vectors"
        )
    return said
