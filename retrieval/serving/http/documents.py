"""End points that read, add, replace and delete documents."""

from __future__ import annotations

from sluice.retrieval.documents.document import Document
from sluice.retrieval.serving.content.live import Written
from sluice.retrieval.serving.http.call import Call, Reply
from sluice.retrieval.serving.service import Service
from sluice.retrieval.serving.shapes.documents import (
    ChangedShape,
    DeleteRequest,
    DocumentShape,
    DocumentsRequest,
    WriteAnswer,
)

STORED = "the change is on disk, do not send it again; searches do not see it yet"


async def document(service: Service, call: Call) -> Reply:
    """Return a document by id; /documents/?id=.. has those that clients take out of a path."""
    (found,) = service.documents([call.path["id"] or call.query.get("id", "")])
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


def _written(service: Service, written: Written) -> Reply:
    retrievers = [
        ChangedShape(
            retriever=each.path.name,
            documents=each.documents,
            added=each.added,
            replaced=each.replaced,
            deleted=each.deleted,
        )
        for each in written.changed
    ]
    fault = service.readable(written.fault)
    note = f"{STORED}: {fault}" if fault else None
    answer = WriteAnswer(retrievers=retrievers, state=written.state, served=not fault, note=note)
    return Reply(answer, 202 if fault else 200)
