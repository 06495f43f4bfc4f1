"""Searches the parts of a collection in one pass where their type can, as one index would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from sluice.encoders.foundation.errors import SluiceError
from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.indexing.hits import Hits
from sluice.indexing.index import Index
from sluice.indexing.kernels.threads import thread_count
from sluice.indexing.live_rows import Mask, Rows

# Documents from which one query of sparse vectors is quicker in several parts by several threads.
LARGE = 500_000


class JoinedParts:
    """The parts as one index, over the same memory; it is joined anew when one has changed.

    To ask four parts one by one takes four times the calls, and none knows the others' k-th score:
    of 10,000 documents that is three times as long as the search of the whole.
    """

    def __init__(self) -> None:
        self._made: tuple[list[Index], list[int], Sequence[Rows], Index | None] = ([], [], (), None)

    def search(
        self,
        parts: Sequence[Index | None],
        rows: Sequence[Rows],
        queries: Any,
        k: int,
        allowed: Mask | None,
        params: dict[str, Any],
    ) -> Hits | None:
        """Return the hits of the collection; None where the parts are to be asked one by one.

        ``rows`` has the collection's row of each row of a part, and ``allowed`` is of the former.
        """
        present = [part for part in parts if part is not None]
        if len(present) < len(parts) or _in_threads(present, queries):
            return None
        index = self._index(present, rows)
        if index is None:
            return None
        merged = {**present[0].default_params, **params}
        try:
            if merged:
                index.check_params(merged)
            return index._search(queries, k, allowed, merged)
        except (SluiceError, OSError):  # one by one, the part that fails is named
            return None

    def _index(self, parts: Sequence[Index], rows: Sequence[Rows]) -> Index | None:
        kind, defaults = type(parts[0]), parts[0].default_params
        if any(type(part) is not kind or part.default_params != defaults for part in parts):
            return None
        readers = [part._reader() for part in parts]
        counts = [reader.rows for reader in readers]
        known, known_counts, known_rows, index = self._made
        same = known_rows is rows and known_counts == counts
        if not same or any(one is not other for one, other in zip(known, readers, strict=True)):
            index = kind._together(readers, [own[:n] for own, n in zip(rows, counts, strict=True)])
            self._made = readers, counts, rows, index
        return index


def stacked(parts: Sequence[Any]) -> Any:
    """Return the vectors of several parts, one after the other; at least one, all of one kind."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    if isinstance(parts[0], TokenVectors):
        return TokenVectors.joined(parts, parts[0].dim)
    width = max(part.shape[1] for part in parts)
    for part in parts:
        part.resize((part.shape[0], width))
    return sparse.vstack(parts, format="csr")


def _in_threads(parts: Sequence[Index], queries: Any) -> bool:
    """Return whether a thread for each part is quicker: an inverted index has one for a query."""
    if queries.shape[0] >= thread_count() or parts[0].metric is not None:
        return False
    return sum(part.rows for part in parts) >= LARGE
