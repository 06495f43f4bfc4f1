"""One request as the end points see it: search, explain, documents, how the service is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel
from pydantic_core import to_json

import sluice
from sluice.retrieval.documents.columns import Column
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.serving.content.content import Content, is_sparse, reranks
from sluice.retrieval.serving.content.live import Written
from sluice.retrieval.serving.faults import RETRY, Fault, invalid
from sluice.retrieval.serving.metrics import CONTENT_TYPE
from sluice.retrieval.serving.service import Service, model_facts
from sluice.retrieval.serving.shapes.base import (
    ChangedShape,
    DeleteRequest,
    DocumentShape,
    DocumentsRequest,
    FilterFacts,
    Health,
    Info,
    Limits,
    ModelFacts,
    PipelineFacts,
    Ready,
    Shape,
    WriteAnswer,
    read_json,
    read_values,
)
from sluice.retrieval.serving.shapes.search import (
    ExplainRequest,
    SearchAnswer,
    SearchAnswers,
    SearchRequest,
)

JSON = "application/json"

Read = TypeVar("Read", bound=Shape)
Answer = TypeVar("Answer")


@dataclass(slots=True)
class Call:
    """A request that was let in: ``arrived`` is its ``time.perf_counter``.

    ``gone`` returns when the client has closed the connection. ``key`` is the name of the key, None
    where none is needed.
    """

    request_id: str
    arrived: float
    body: bytes
    gone: Callable[[], Awaitable[Any]]
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None

    def read(self, kind: type[Read]) -> Read:
        """Return the body as a shape; a ``Fault`` that names the field that is wrong."""
        return read_json(kind, self.body)

    def read_query(self, kind: type[Read], values: Mapping[str, Any]) -> Read:
        """Return the values of a query string as a shape."""
        return read_values(kind, dict(values))


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: a shape, a list of such, plain values, or bytes of a ``media`` type."""

    content: Any
    status: int = 200
    media: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """The bytes to send."""
        if isinstance(self.content, bytes):
            return self.content
        if isinstance(self.content, BaseModel):
            return self.content.__pydantic_serializer__.to_json(self.content)
        return to_json(self.content)


Handler = Callable[[Service, Call], Awaitable[Reply]]


class EndPoint(NamedTuple):
    """One end point; ``scope`` is what a key needs, None where none is needed.

    ``request`` is the shape of the body, or of the query string of a GET. ``response`` are the
    shapes an answer may have; one in a list is a list of such.
    """

    method: str
    path: str
    handler: Handler
    scope: str | None
    response: list[type[Shape] | list[type[Shape]]]
    request: type[Shape] | None = None

    @property
    def summary(self) -> str:
        """The first sentence of what it does."""
        return (self.handler.__doc__ or "").strip().partition("\n")[0]


async def unless_gone(work: Awaitable[Answer], gone: Awaitable[Any]) -> Answer:
    """Return what ``work`` does; where ``gone`` returns first, cancel the work and stop."""
    # The work runs in this task: another one for each request is a tenth of what the loop does.
    own, working, left = asyncio.current_task(), True, False
    watcher = asyncio.ensure_future(gone)

    def leave(_: Any) -> None:
        nonlocal left
        left = working and own is not None and own.cancel()

    watcher.add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if not left or own is None:
            raise
        own.uncancel()
        raise Fault(499, "client_closed_request", "the client closed the connection") from None
    finally:
        working = False  # where both end at once, leave may be called after this
        watcher.remove_done_callback(leave)
        watcher.cancel()


LISTS = ("fields", "ids", "seen")  # written with commas in a query string
YES_OR_NO = ("highlight", "fuse")
FLAGS = {"true": True, "false": False, "1": True, "0": False}


async def search(service: Service, call: Call) -> Reply:
    """Search with one query, or with several at once."""
    return await _search(service, call, call.read(SearchRequest))


async def search_by_address(service: Service, call: Call) -> Reply:
    """Search with one query that the address has."""
    return await _search(service, call, call.read_query(SearchRequest, _asking_values(call)))


async def explain(service: Service, call: Call) -> Reply:
    """Say what each stage did with a query and where documents moved."""
    request = call.read(ExplainRequest)
    return Reply(await unless_gone(service.explain(request), call.gone()))


async def _search(service: Service, call: Call, request: SearchRequest) -> Reply:
    answers = await unless_gone(service.search(request, call.arrived), call.gone())
    one = request.fuse or isinstance(request.query, str)
    headers = {"server-timing": _timing(answers[0])} if one else {}
    return Reply(answers[0] if one else SearchAnswers(results=answers), headers=headers)


def _timing(answer: SearchAnswer) -> str:
    """Return the times of the stages, as browsers show them."""
    names = [(f"s{place}", stage) for place, stage in enumerate(answer.stages)]
    return ", ".join(
        f'{short};dur={stage.milliseconds:.2f};desc="{_quotable(stage.name)}"'
        for short, stage in names
    )


def _quotable(name: str) -> str:
    ascii_only = name.encode("ascii", "replace").decode()
    return "".join(letter for letter in ascii_only if letter.isprintable() and letter not in '"\\')


def _asking_values(call: Call) -> dict[str, object]:
    """Return the fields of a query string; ``q`` is the query, ``where`` is JSON."""
    values: dict[str, object] = dict(call.query)
    if "q" in values:
        values["query"] = values.pop("q")
    for name in LISTS:
        if name in values:
            values[name] = str(values[name]).split(",")
    for name in YES_OR_NO:
        if name in values:
            word = str(values[name])
            if word not in FLAGS:
                raise invalid(f"{name}: {word[:60]!r}; expected true or false", name)
            values[name] = FLAGS[word]
    if "where" in values:
        try:
            values["where"] = json.loads(str(values["where"]))
        except (ValueError, RecursionError):
            raise Fault(
                400, "invalid_request", 'where: not JSON; expected such as {"lang": "en"}',
                param="where",
            ) from None  # fmt: skip
    return values


STORED = "the change is on disk, do not send it again; searches do not see it yet"


async def document(service: Service, call: Call) -> Reply:
    """Return a document by id; /documents/?id=.. has those that clients take out of a path."""
    (stored,) = service.documents([call.path["id"] or call.query.get("id", "")])
    metadata = dict(stored.metadata)
    shape = DocumentShape(id=stored.id, title=stored.title, text=stored.text, metadata=metadata)
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


Value = str | int | float | bool

WARMING = "warming up: what is compiled at first use is compiled now"
MOST_VALUES = 20  # of a metadata field, that are listed


async def health(service: Service, call: Call) -> Reply:
    """Answer as long as the process does."""
    return Reply(Health())


async def ready(service: Service, call: Call) -> Reply:
    """Say whether requests can be answered: 503 while the service warms up, and as it stops."""
    fault = service.live.fault or (None if service.is_warm else WARMING)
    facts = Ready(
        ready=service.is_warm and not service.stopping,
        state=service.content.number,
        fault=None if fault is None else service.readable(fault),
        queue_tokens=service.budget.used,
    )
    retry = {} if facts.ready else {"retry-after": str(RETRY)}
    return Reply(facts, 200 if facts.ready else 503, headers=retry)


async def metrics(service: Service, call: Call) -> Reply:
    """Return counts and times for Prometheus."""
    return Reply(service.metrics.text(), media=CONTENT_TYPE)


async def info(service: Service, call: Call) -> Reply:
    """Say what is served: pipelines, models, filters and limits."""
    return Reply(info_of(service))


def info_of(service: Service) -> Info:
    """Return what is served."""
    content, settings = service.content, service.settings
    store = content.store
    return Info(
        name=service.name,
        version=sluice.__version__,
        documents=None if store is None else len(store),
        state=content.number,
        writable=settings.writable,
        keys=settings.keys is not None,
        judging=service.judging is not None,
        pipelines=[_pipeline(content, name, stage) for name, stage in content.stages.items()],
        models=[*_models(content)],
        filters=_filters(store),
        limits=Limits(
            k=settings.depth,
            inputs=settings.inputs,
            body_bytes=settings.body_bytes,
            batch_tokens=settings.batch_tokens,
            queue_tokens=settings.queue_tokens,
        ),
    )


def _pipeline(content: Content, name: str, stage: Stage) -> PipelineFacts:
    return PipelineFacts(
        name=name,
        expression=content.texts.get(name, stage.name),
        default=name == content.default,
        stops_early=reranks(stage),
    )


def _models(content: Content) -> Iterator[ModelFacts]:
    for name, encoder in content.encoders.items():
        kind = "sparse" if is_sparse(encoder) else "dense"
        fingerprint = content.fingerprints.get(name)
        yield ModelFacts(name=name, kind=kind, fingerprint=fingerprint, **model_facts(encoder))
    for name in content.scorers:
        yield ModelFacts(name=name, kind="reranker")


def _filters(store: DocumentStore | None) -> list[FilterFacts]:
    """Return the metadata fields, with the values of those that have few."""
    kinds: dict[str, set[str]] = {}
    values: dict[str, set[Value] | None] = {}
    for _, columns in () if store is None else store.columns:
        for name, parts in columns.items():
            for column in parts:
                kinds.setdefault(name, set()).add(column.kind)
                few = values.setdefault(name, set())
                own = _values(column)
                values[name] = None if few is None or own is None else few | own
    shown = {
        name: sorted(few, key=str) if few and len(few) <= MOST_VALUES else None
        for name, few in values.items()
    }
    return [FilterFacts(name=name, kinds=sorted(kinds[name]), values=shown[name]) for name in kinds]


def _values(column: Column) -> set[Value] | None:
    """Return the values of a column, None where they are many or numbers."""
    if column.kind == "boolean":
        return {True, False}
    if column.words is None or len(column.words) > MOST_VALUES:
        return None
    return {column.words[code] for code in range(len(column.words))}
