"""What a search of a stage is made of: its hits with texts, its states, its time limit."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, Protocol, TypeVar, cast, runtime_checkable

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.pipelines.hit import Hit, Passage
from sluice.retrieval.pipelines.tracing import Span, keeping_passages
from sluice.retrieval.runs.queries import Queries, as_queries
from sluice.retrieval.runs.run import Ranking, Run

State = TypeVar("State")

# What the call under way has seen: an object and its state, by the object's id. The object is kept,
# since another could get the id of one that is gone.
_seen: ContextVar[dict[int, tuple[object, Any]] | None] = ContextVar("seen", default=None)


@contextmanager
def one_state() -> Iterator[None]:
    """Let each retriever be searched in one state until the outermost block ends."""
    if _seen.get() is not None:
        yield
        return
    token = _seen.set({})
    try:
        yield
    finally:
        _seen.reset(token)


def kept_state(owner: object, current: State) -> State:
    """Return the state that the call under way saw first, the current one outside of calls."""
    seen = _seen.get()
    if seen is None:
        return current
    _, state = seen.setdefault(id(owner), (owner, current))
    return cast("State", state)


Several = list[str] | tuple[str, ...]
P = ParamSpec("P")
R = TypeVar("R")


# The passages of a query's documents, from the trace of its run.
PassagesOf = Callable[[str, Sequence[str], Span], list[Passage | None]]


_ends: ContextVar[float | None] = ContextVar("sluice_time_limit", default=None)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Let the rerankers of a search in the block, in this thread, stop after so many seconds.

    What they have not scored by then keeps its order below what they have, as with a reranker's
    own ``deadline_ms``. Retrievers are not stopped. Inside another limit the earlier one holds.
    """
    outer = _ends.get()
    ends = time.perf_counter() + seconds
    token = _ends.set(ends if outer is None else min(ends, outer))
    try:
        yield
    finally:
        _ends.reset(token)


def seconds_left() -> float | None:
    """Return what is left of the time limit, 0 or less when it is over; None without a limit."""
    ends = _ends.get()
    return None if ends is None else ends - time.perf_counter()


def awaited(
    method: Callable[P, R], own: Callable[[Any], Callable[..., R]]
) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return what ``method`` is, in all its overloads, awaited in a thread.

    ``own`` returns that method of an object, which its class may have replaced.
    """

    @functools.wraps(method)
    async def waiting(stage: Any, *arguments: Any, **options: Any) -> Any:
        return await asyncio.to_thread(own(stage), *arguments, **options)

    name = method.__name__
    waiting.__name__ = f"a{name}"
    waiting.__qualname__ = method.__qualname__.removesuffix(name) + waiting.__name__
    waiting.__doc__ = f"``{name}`` in a thread, awaited: other tasks run meanwhile."
    return cast("Callable[P, Coroutine[Any, Any, R]]", waiting)


class Texts(Protocol):
    """Where a stage finds the text of a document: a retriever's document store."""

    def texts(self, document_ids: Sequence[str]) -> list[str]:
        """Return the full texts of documents, in the order of the ids."""
        ...


@runtime_checkable
class WholeDocuments(Protocol):
    """A store that has titles and metadata too, as a retriever's."""

    def documents_of(self, document_ids: Sequence[str]) -> Sequence[Document]:
        """Return the documents, in the order of the ids."""
        ...


class _Storing(Protocol):
    @property
    def documents(self) -> Texts | None: ...


class TextsOf:
    """The store of a stage, which is another one after each change of a retriever's documents."""

    def __init__(self, stage: _Storing) -> None:
        self.stage = stage

    @property
    def store(self) -> Texts:
        """The store as it is now."""
        store = self.stage.documents
        if store is None:
            raise ConfigError(f"{self.stage!r}: has no documents; expected a stage with a store")
        return store

    def texts(self, document_ids: Sequence[str]) -> list[str]:
        """Return the full texts of documents, in the order of the ids."""
        return self.store.texts(document_ids)

    def documents_of(self, document_ids: Sequence[str]) -> list[Document]:
        """Return the documents, in the order of the ids."""
        return documents_in(self.store, document_ids)


def documents_in(store: Texts | None, doc_ids: Sequence[str]) -> list[Document]:
    """Return documents by id; those of a store of plain texts have neither title nor metadata."""
    if store is None or not doc_ids:
        return [Document(doc_id, "", "") for doc_id in doc_ids]
    if isinstance(store, (DocumentStore, WholeDocuments)):  # to ask a protocol takes longer
        return list(store.documents_of(doc_ids))
    texts = store.texts(list(doc_ids))
    return [Document(doc_id, "", text) for doc_id, text in zip(doc_ids, texts, strict=True)]


def hits_of(
    rank: Callable[[Queries, Run | None, int], Run],
    documents: Texts | None,
    query: str | Several,
    k: int,
    passages_of: PassagesOf | None = None,
) -> list[Hit] | list[list[Hit]]:
    """Return the ``k`` best documents that ``rank`` finds, with their texts: of one query or each.

    ``passages_of`` names the hits' passages from the trace of ``rank``, one query after the other;
    without it they have none, and several queries are searched together.
    """
    k = whole_number(k, "k", 1)
    if isinstance(query, str):
        return _hits(rank, documents, query, k, passages_of)
    queries = several(query)
    if passages_of is not None:
        return [_hits(rank, documents, text, k, passages_of) for text in queries.values()]
    run = rank(queries, None, k)
    return [_with_texts(run[name][:k], documents) for name in queries]


def _hits(
    rank: Callable[[Queries, Run | None, int], Run],
    documents: Texts | None,
    query: str,
    k: int,
    passages_of: PassagesOf | None,
) -> list[Hit]:
    with keeping_passages(passages_of is not None) as spans:
        ranking = rank({"query": query}, None, k)["query"][:k]
    if passages_of is None or not spans:
        return _with_texts(ranking, documents)
    return _with_texts(ranking, documents, passages_of(query, list(ranking.doc_ids), spans[-1]))


def _with_texts(
    ranking: Ranking, documents: Texts | None, passages: Sequence[Passage | None] | None = None
) -> list[Hit]:
    doc_ids = list(ranking.doc_ids)
    whole = documents_in(documents, doc_ids)
    rows = zip(ranking, whole, passages or [None] * len(doc_ids), strict=True)
    return [
        Hit(doc_id, score, document.text, document.title, document.metadata, passage)
        for (doc_id, score), document, passage in rows
    ]


def several(queries: Any) -> Queries:
    """Return the queries of a search by their place; ``ConfigError`` for anything but a list."""
    if hasattr(queries, "columns"):
        return as_queries(queries)
    if isinstance(queries, dict) or not isinstance(queries, Iterable):
        raise ConfigError(
            f"query: {queries!r:.80}; expected text or a list of texts (run takes queries by id)"
        )
    return as_queries(list(queries))
