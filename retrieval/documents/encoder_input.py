"""What an encoder reads of a document: the one place where a document becomes encoder input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.retrieval.documents.document import Document


def document_input(encoder: Any, document: Document) -> str | dict[str, str]:
    """Return what an encoder reads of a document: its full text, or its fields by name.

    An encoder whose ``fields`` is set reads fields: title, text and every text in the metadata.
    """
    if not getattr(encoder, "fields", None):
        return document.full_text
    stored = {name: text for name, text in document.metadata.items() if isinstance(text, str)}
    return {**stored, "title": document.title, "text": document.text}
