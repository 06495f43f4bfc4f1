"""Traces a pipeline: what each stage was given, what it returned and how long it took."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.hit import Passage
    from sluice.retrieval.pipelines.stage import Stage
    from sluice.retrieval.runs.run import Run

Ran = TypeVar("Ran", bound=Callable[..., Any])


@dataclass(slots=True)
class Span:
    """One run of one stage: its parts' runs are ``inner``, in the order they ran.

    ``seconds`` include those of the parts; ``facts`` are what the stage noted itself,
    such as the pairs a reranker scored for each query.
    """

    stage: Stage
    given: Run | None
    result: Run | None = None
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    inner: list[Span] = field(default_factory=list)
    passage_notes: dict[str, Any] | None = None  # what names passages, see ``keeping_passages``

    @property
    def own_seconds(self) -> float:
        """The seconds that the stage itself took, without its parts."""
        return max(0.0, self.seconds - sum(part.seconds for part in self.inner))

    def walk(self) -> Iterator[Span]:
        """Yield every span, the parts of each before it: in the order they ended."""
        for part in self.inner:
            yield from part.walk()
        yield self


_open: ContextVar[list[Span] | None] = ContextVar("sluice_trace", default=None)


@contextmanager
def tracing() -> Iterator[list[Span]]:
    """Collect a span for every stage that runs inside the block, in this thread; outermost ones.

    Costs nothing where no block is open.
    """
    spans: list[Span] = []
    token = _open.set(spans)
    try:
        yield spans
    finally:
        _open.reset(token)


_current: ContextVar[Span | None] = ContextVar("sluice_span", default=None)
# Set while spans keep what names passages; True without another trace.
_keeping: ContextVar[bool | None] = ContextVar("sluice_keeping_passages", default=None)


SCORED_PASSAGES = "scored passages"  # kept by a scorer: full text to number, start and end


@contextmanager
def keeping_passages(wanted: bool) -> Iterator[list[Span]]:
    """Collect spans that keep what names the passages of hits, such as vectors of queries.

    An open trace sees the spans as well. Without ``wanted`` nothing is collected.
    """
    if not wanted:
        yield []
        return
    outer = _open.get()
    token = _keeping.set(outer is None)
    try:
        with tracing() as spans:
            yield spans
    finally:
        _keeping.reset(token)
        if outer is not None:
            outer += spans


def passage_notes() -> dict[str, Any] | None:
    """Return where the running stage puts what names passages, None where nobody asks."""
    span = _current.get()
    return None if span is None else span.passage_notes


def note(facts: Mapping[str, Any]) -> None:
    """Add facts to the span of the running stage, if a trace is open."""
    span = _current.get()
    if span is not None and _open.get() is not None:
        span.facts.update(facts)


def is_traced() -> bool:
    """Return whether the running stage is traced: only then are expensive facts computed."""
    return _current.get() is not None and _open.get() is not None and not _keeping.get()


def tally(counts: Mapping[str, int]) -> None:
    """Add counts to those of the same name in the running stage's span, if a trace is open."""
    span = _current.get()
    if span is not None and _open.get() is not None:
        for name, count in counts.items():
            span.facts[name] = span.facts.get(name, 0) + count


def traced(run: Ran) -> Ran:
    """Return a stage's ``run`` that leaves a span where a trace is open."""

    @functools.wraps(run)
    def seen(self: Any, queries: Any, given: Any = None, *rest: Any, **options: Any) -> Any:
        spans = _open.get()
        if spans is None:
            return run(self, queries, given, *rest, **options)
        span = Span(self, given, passage_notes=None if _keeping.get() is None else {})
        spans.append(span)
        inside, current = _open.set(span.inner), _current.set(span)
        start = time.perf_counter()
        try:
            span.result = run(self, queries, given, *rest, **options)
        finally:
            span.seconds = time.perf_counter() - start
            _open.reset(inside)
            _current.reset(current)
        return span.result

    return seen  # type: ignore[return-value]


def passages_by_best(
    spans: Sequence[Span], query: str, doc_ids: Sequence[str]
) -> list[Passage | None]:
    """Return each document's passage from the part that ranked it best, of those that name one."""
    # Spans of one query: a run has one ranking, by whatever name the query was asked.
    parts = [part for part in spans if part.stage.names_passages]
    ranks = [
        {
            name: rank
            for each in (part.result or {}).values()
            for rank, name in enumerate(each.doc_ids)
        }
        for part in parts
    ]
    passages: list[Passage | None] = [None] * len(doc_ids)
    chosen: dict[int, list[int]] = {}
    for place, name in enumerate(doc_ids):
        ranked = [(rank[name], part) for part, rank in enumerate(ranks) if name in rank]
        if ranked:
            chosen.setdefault(min(ranked)[1], []).append(place)
    for number, places in chosen.items():
        part = parts[number]
        named = part.stage.passages_of(query, [doc_ids[place] for place in places], part)
        for place, passage in zip(places, named, strict=True):
            passages[place] = passage
    return passages
