"""Documents: read, added, replaced and deleted by id."""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices, Field

from sluice.retrieval.serving.shapes.base import Shape


class DocumentShape(Shape):
    """One document; ``_id`` is read as ``id``."""

    id: str = Field(validation_alias=AliasChoices("id", "_id"), min_length=1)
    title: str = ""
    text: str = ""
    metadata: dict[str, Any] = Field(default_factory=dict)


class DocumentsRequest(Shape):
    """Documents to add, or to replace by id."""

    documents: list[DocumentShape] = Field(min_length=1)


class DeleteRequest(Shape):
    """Ids of documents to delete."""

    ids: list[str] = Field(min_length=1)


class ChangedShape(Shape):
    """What a change did to one retriever, and how many documents it has now."""

    retriever: str
    documents: int
    added: int
    replaced: int
    deleted: int


class WriteAnswer(Shape):
    """A change that is on disk; ``state`` is the first that has it."""

    retrievers: list[ChangedShape]
    state: int
