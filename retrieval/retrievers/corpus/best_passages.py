"""Names the passages by which a retriever found its documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sluice.retrieval.pipelines.hit import Passage
from sluice.retrieval.pipelines.tracing import Span, kept

if TYPE_CHECKING:
    from sluice.indexing import Index
    from sluice.retrieval.documents.store import DocumentStore
    from sluice.retrieval.retrievers.corpus.passages import Passages

VECTORS = "query vectors"


def keep_vectors(vectors: Any) -> None:
    """Keep in the running stage's span the vectors it searches with, for ``PassageFinder``."""
    if (keep := kept()) is not None:
        keep[VECTORS] = vectors


@dataclass(frozen=True, slots=True)
class PassageFinder:
    """Finds the passage that gives a document its score; ``params`` are those of searches."""

    passages: Passages
    encoder: Any
    index: Index
    store: DocumentStore
    params: Mapping[str, Any]

    def find(self, query: str, doc_ids: Sequence[str], span: Span) -> list[Passage | None]:
        """Return the passage that gives each document its score for the query.

        Of ``aggregate="first"`` that is the first one; of ``"mean"`` none decides, and all are
        None, as are documents that the retriever lacks or does not find. The query's vector is the
        one that the search kept in ``span``; without one the query is encoded.
        """
        found: list[Passage | None] = [None] * len(doc_ids)
        if self.passages.aggregate == "mean" or not doc_ids or not query.strip():
            return found
        rows = self.store.rows(doc_ids)
        here = np.flatnonzero(rows >= 0)
        numbers = self._winning(query, rows[here], (span.kept or {}).get(VECTORS))
        here, numbers = here[numbers >= 0], numbers[numbers >= 0]
        documents = self.store.documents(rows[here])
        spans = self.passages.characters(self.encoder, documents)
        for place, number, document, each in zip(
            here.tolist(), numbers.tolist(), documents, spans, strict=True
        ):
            start, end = each[number]
            found[place] = Passage(number + 1, start, end, document.text[start:end])
        return found

    def _winning(self, query: str, rows: NDArray[np.int64], vectors: Any) -> NDArray[np.int64]:
        """Return the number of each row's best passage from 0, -1 where it has none."""
        from sluice.indexing.wrappers.passages import PassageIndex
        from sluice.indexing.wrappers.sharded import ShardedIndex

        index = self.index
        if self.passages.aggregate == "first" or not isinstance(index, PassageIndex | ShardedIndex):
            return np.zeros(len(rows), dtype=np.int64)
        if vectors is None or vectors.shape[0] != 1:
            vectors = self.encoder.encode_queries([query])
        return index.winning_passages(vectors, rows, params=self.params)
