"""Traces a pipeline: what each stage was given, what it returned and how long it took."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
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


def note(facts: Mapping[str, Any]) -> None:
    """Add facts to the span of the running stage, if a trace is open."""
    span = _current.get()
    if span is not None and _open.get() is not None:
        span.facts.update(facts)


def is_traced() -> bool:
    """Return whether the running stage is traced: only then are expensive facts computed."""
    return _current.get() is not None and _open.get() is not None


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
        span = Span(self, given)
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
