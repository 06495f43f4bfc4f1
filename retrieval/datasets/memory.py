"""A dataset that is already in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sluice.retrieval.datasets.source import Places, Qrels
from sluice.retrieval.documents.document import Document

Split = tuple[Mapping[str, str], Mapping[str, Mapping[str, int]]]


class MemorySource:
    """Documents, and for each split its queries and qrels."""

    def __init__(
        self, name: str, documents: Iterable[Document], splits: Mapping[str, Split]
    ) -> None:
        self.name = name
        self._documents = list(documents)
        self._splits = dict(splits)

    def splits(self) -> list[str]:
        """Return the names given."""
        return list(self._splits)

    def places(self, split: str) -> Places:
        """Name the parts, which lie in no file."""
        return Places(
            f"{self.name}: corpus", f"{self.name}: queries", f"{self.name}: qrels of {split}"
        )

    def documents(self) -> Iterator[Document]:
        """Yield the documents."""
        return iter(self._documents)

    def document_count(self) -> int:
        """Return how many there are."""
        return len(self._documents)

    def queries(self, split: str) -> Iterable[tuple[str, str]]:
        """Return the split's queries."""
        return self._splits[split][0].items()

    def qrels(self, split: str) -> Qrels:
        """Return a copy of the split's judgements."""
        return {name: dict(judged) for name, judged in self._splits[split][1].items()}
