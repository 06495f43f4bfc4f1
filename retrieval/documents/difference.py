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

    Both ``[given]``, -1 without one; ``same_text`` is the row where title and text are the same.
    ``gone`` are the store's rows whose ids are not given, and ``in_order`` says whether its
    documents are the given ones, in their order.
    """

    before: Rows
    same: Rows
    gone: Rows
    in_order: bool
    same_text: Rows

    @property
    def changed(self) -> Rows:
        """The given documents that the store lacks, or has otherwise."""
        return np.flatnonzero(self.same < 0)


def difference(held: DocumentStore, given: DocumentStore) -> Difference:
    """Compare titles, texts and metadata; ``given`` has no deleted rows.

    Memory: two numbers a document, and a chunk of documents of either side.
    """
    total = given.rows_total
    before, same, same_text = (np.full(total, -1, dtype=np.int64) for _ in range(3))
    for start in range(0, total, CHUNK):
        documents = given.documents(np.arange(start, min(start + CHUNK, total)))
        rows = held.rows([document.id for document in documents])
        before[start : start + len(rows)] = rows
        known = np.flatnonzero(rows >= 0)
        for place, other in zip(known.tolist(), held.documents(rows[known]), strict=True):
            if documents[place][1:3] == other[1:3]:
                same_text[start + place] = rows[place]
                if _metadata(documents[place]) == _metadata(other):
                    same[start + place] = rows[place]
    live = held.live_rows
    gone = np.setdiff1d(live, before)
    return Difference(before, same, gone, np.array_equal(same, live), same_text)


def _metadata(document: Document) -> str:
    # By their spelling, for 1, 1.0 and True are equal and are not the same metadata.
    return repr(sorted(document.metadata.items()))
