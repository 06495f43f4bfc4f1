"""Documents: read, added, replaced and deleted by id."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, Field

from sluice.retrieval.serving.shapes.base import Shape


def _on_one_line(doc_id: str) -> str:
    if "\n" in doc_id or "\r" in doc_id:
        raise ValueError(f"{doc_id!r:.60}: has a line break; expected an id on one line")
    return doc_id


class DocumentShape(Shape):
    """One document."""

    id: str
    title: str = ""
    text: str = ""
    metadata: dict[str, Any] = Field(default_factory=dict)


class NewDocument(DocumentShape):
    """A document to write; ``_id`` is read as ``id``."""

    id: Annotated[str, AfterValidator(_on_one_line)] = Field(
        validation_alias=AliasChoices("id", "_id"), min_length=1
    )


class DocumentsRequest(Shape):
    """Documents to add, or to replace by id."""

    documents: list[NewDocument] = Field(min_length=1)


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
    """A change that is on disk, and the state that answers searches after it.

    ``served`` is false, with status 202, where searches do not see the change yet: ``note`` says
    why. It is served as soon as the state can be opened.
    """

    retrievers: list[ChangedShape]
    state: int
    served: bool = True
    note: str | None = None
