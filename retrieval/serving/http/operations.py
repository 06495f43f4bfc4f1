"""End points that say how the service is."""

from __future__ import annotations

from collections.abc import Iterator

import sluice
from sluice.retrieval.documents.columns import Column
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.serving.content.content import Content, is_sparse, reranks
from sluice.retrieval.serving.faults import RETRY
from sluice.retrieval.serving.http.call import Call, Reply
from sluice.retrieval.serving.metrics import CONTENT_TYPE
from sluice.retrieval.serving.service import Service, model_facts
from sluice.retrieval.serving.shapes.facts import (
    FilterFacts,
    Health,
    Info,
    Limits,
    ModelFacts,
    PipelineFacts,
    Ready,
)

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
