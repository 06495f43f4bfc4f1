"""End points that read, add, replace and delete documents."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.retrieval.documents.document import Document
from sluice.retrieval.experiments.output.changes import Changed
from sluice.retrieval.serving.http.call import Call, Reply
from sluice.retrieval.serving.service import Service
from sluice.retrieval.serving.shapes.documents import (
    ChangedShape,
    DeleteRequest,
    DocumentShape,
    DocumentsRequest,
    WriteAnswer,
)


async def document(service: Service, call: Call) -> Reply:
    """Return a document by id."""
    (found,) = service.documents([call.path["id"]])
    metadata = dict(found.metadata)
    shape = DocumentShape(id=found.id, title=found.title, text=found.text, metadata=metadata)
    return Reply(shape)


async def add(service: Service, call: Call) -> Reply:
    """Add documents; an id that is there already refuses them all."""
    return _written(service, await service.add(_documents(call)))


async def update(service: Service, call: Call) -> Reply:
    """Replace documents by id, and add those that are new."""
    return _written(service, await service.update(_documents(call)))


async def delete(service: Service, call: Call) -> Reply:
    """Delete documents by id; an id that none has refuses them all."""
    return _written(service, await service.delete(call.read(DeleteRequest).ids))


async def delete_one(service: Service, call: Call) -> Reply:
    """Delete one document."""
    return _written(service, await service.delete([call.path["id"]]))


def _documents(call: Call) -> list[Document]:
    request = call.read(DocumentsRequest)
    return [Document(d.id, d.title, d.text, d.metadata) for d in request.documents]


def _written(service: Service, changed: Sequence[Changed]) -> Reply:
    retrievers = [
        ChangedShape(
            retriever=each.path.name,
            documents=each.documents,
            added=each.added,
            replaced=each.replaced,
            deleted=each.deleted,
        )
        for each in changed
    ]
    return Reply(WriteAnswer(retrievers=retrievers, state=service.content.number))
