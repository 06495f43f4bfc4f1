"""How given documents differ from those of a store: what is new, changed, gone or the same."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.store import DocumentStore

CHUNK = 512  # documents compared at a time

Rows = NDArray[np.int64]


class Difference(NamedTuple):
    """Of each given document the row of its id in the store, and that row where it is the same.

    Both ``[given]``, -1 without one. ``gone`` are the store's rows whose ids are not given, and
    ``in_order`` says whether its documents are the given ones, in their order.
    """

    before: Rows
    same: Rows
    gone: Rows
    in_order: bool

    @property
    def changed(self) -> Rows:
        """The given documents that the store lacks, or has otherwise."""
        return np.flatnonzero(self.same < 0)


def difference(held: DocumentStore, given: DocumentStore) -> Difference:
    """Compare titles, texts and metadata; ``given`` has no deleted rows.

    Memory: two numbers a document, and a chunk of documents of either side.
    """
    total = given.rows_total
    before, same = (np.full(total, -1, dtype=np.int64) for _ in range(2))
    for start in range(0, total, CHUNK):
        documents = given.documents(np.arange(start, min(start + CHUNK, total)))
        rows = held.rows([document.id for document in documents])
        before[start : start + len(rows)] = rows
        known = np.flatnonzero(rows >= 0)
        for place, other in zip(known.tolist(), held.documents(rows[known]), strict=True):
            if _content(documents[place]) == _content(other):
                same[start + place] = rows[place]
    live = held.live_rows
    return Difference(before, same, np.setdiff1d(live, before), np.array_equal(same, live))


def _content(document: Document) -> tuple[str, str, str]:
    # By their spelling, for 1, 1.0 and True are equal and are not the same metadata.
    return document.title, document.text, repr(sorted(document.metadata.items()))
