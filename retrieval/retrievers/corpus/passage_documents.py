"""The passages of a store's documents, read as if each were a document of a corpus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.retrievers.corpus.passages import Passages

Rows = NDArray[np.int64]


class PassageDocuments:
    """All passages in the order of the store's rows; ``len`` is their number.

    Documents are cut anew whenever they are read: in memory are only the ``counts``.
    """

    def __init__(self, passages: Passages, encoder: Any, documents: DocumentStore) -> None:
        self._passages, self._encoder, self._documents = passages, encoder, documents
        self._counts: Rows | None = None

    @property
    def counts(self) -> Rows:
        """The number of passages of each document ``[documents]``."""
        if self._counts is None:
            for _ in self:
                pass
        counts = self._counts
        return np.zeros(0, dtype=np.int64) if counts is None else counts

    def __len__(self) -> int:
        return int(self.counts.sum())

    def __iter__(self) -> Iterator[Document]:
        counts: list[int] = []
        for parts in self._passages.split(self._encoder, self._documents):
            counts.append(len(parts))
            yield from parts
        self._counts = np.array(counts, dtype=np.int64)

    def documents(self, rows: Rows) -> list[Document]:
        """Return passages by their numbers, in the order asked."""
        ends = np.cumsum(self.counts)
        owners = np.searchsorted(ends, rows, side="right")
        distinct, places = np.unique(owners, return_inverse=True)
        whole = self._documents.documents(distinct)
        cut = list(self._passages.split(self._encoder, whole))
        numbers = rows - (ends - self.counts)[owners]
        return [
            cut[place][number]
            for place, number in zip(places.tolist(), numbers.tolist(), strict=True)
        ]
