"""The built-in dataset ``pydocs`` as a source of documents, queries and judgements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from retrieval import pydocs
from retrieval.dataset_source import Places, Qrels
from retrieval.document import Document


class PydocsSource:
    """The documentation of the interpreter's own standard library (``retrieval.pydocs``)."""

    name = "pydocs"

    def splits(self) -> list[str]:
        """Return train, dev and test."""
        return list(pydocs.SPLITS)

    def places(self, split: str) -> Places:
        """Name the parts, which are made from the standard library's source files."""
        return Places("pydocs: corpus", "pydocs: queries", f"pydocs: qrels of {split}")

    def documents(self) -> Iterator[Document]:
        """Stream the corpus."""
        return (Document(*entry) for entry in pydocs.documents())

    def document_count(self) -> None:
        """Return None: the corpus is made when it is first read."""

    def queries(self, split: str) -> Iterable[tuple[str, str]]:
        """Return the split's queries."""
        return pydocs.queries(split).items()

    def qrels(self, split: str) -> Qrels:
        """Return the split's judgements."""
        return pydocs.qrels(split)
