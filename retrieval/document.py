"""The document: what a corpus streams, an encoder reads and a retriever returns."""

from __future__ import annotations

from typing import NamedTuple


class Document(NamedTuple):
    """One entry of a corpus; an empty title or an empty text is valid."""

    id: str
    title: str
    text: str

    @property
    def full_text(self) -> str:
        """What is encoded and reranked: the title, a space and the text, stripped."""
        return f"{self.title} {self.text}".strip()
