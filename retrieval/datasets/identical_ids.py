"""Whether a hit whose id is the query's own is the query itself, and must be dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from sluice.encoders.foundation.same_text import same_text_key
from sluice.retrieval.documents.document import Document


class IdenticalIds(NamedTuple):
    """The decision, and what it was made from."""

    drop: bool
    shared: int  # queries that have the id of a document
    standing: int  # of those, the ones whose text stands in that document, unjudged
    reason: str


class IdenticalIdCheck:
    """Sees documents one by one and decides in the end.

    Hits are dropped where, of the queries that share an id with a document, at least half are
    found word for word in it without being judged relevant to it (ArguAna). Where ids coincide by
    numbering alone (Cranfield), or the document of that id is the answer, every hit stays.
    """

    def __init__(self, queries: Mapping[str, str], qrels: Mapping[str, Mapping[str, int]]) -> None:
        self._queries = queries
        self._qrels = qrels
        self._shared = 0
        self._standing = 0

    def see(self, document: Document) -> None:
        """Compare a document with the query of its id, if there is one."""
        query = self._queries.get(document.id)
        if query is None:
            return
        self._shared += 1
        relevant = self._qrels.get(document.id, {}).get(document.id, 0) > 0
        words = _padded(query)
        if words.strip() and not relevant and words in _padded(document.full_text):
            self._standing += 1

    def decide(self) -> IdenticalIds:
        """Return the decision from the documents seen."""
        drop = self._standing > 0 and 2 * self._standing >= self._shared
        if self._shared == 0:
            reason = "no query has the id of a document"
        else:
            reason = (
                f"{self._shared:,} queries have the id of a document, "
                f"{self._standing:,} of them stand in it word for word"
            )
        return IdenticalIds(drop, self._shared, self._standing, reason)


def decide_identical_ids(
    queries: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, int]],
    documents: Iterable[Document] | Callable[[str], Document | None],
) -> IdenticalIds:
    """Decide from a pass over documents, or from a look-up by id (a document store's ``find``)."""
    check = IdenticalIdCheck(queries, qrels)
    if callable(documents):
        for name in queries:
            document = documents(name)
            if document is not None:
                check.see(document)
    else:
        for document in documents:
            check.see(document)
    return check.decide()


def _padded(text: str) -> str:
    return f" {same_text_key(text)} "
