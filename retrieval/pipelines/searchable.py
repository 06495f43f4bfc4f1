"""How callers ask a stage: one query or several, filtered, cut to ``k``, awaited."""

from __future__ import annotations

import asyncio
import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast, overload

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.familiar import QUERY, FamiliarStage, K, renamed
from sluice.indexing.wrappers.partial import partial_results
from sluice.retrieval.documents.document import Document
from sluice.retrieval.pipelines.hit import Hit, Passage
from sluice.retrieval.pipelines.one_state import one_state
from sluice.retrieval.pipelines.tracing import Span, keeping_passages, traced
from sluice.retrieval.runs.queries import Asked, Queries, as_queries
from sluice.retrieval.runs.run import Run

if TYPE_CHECKING:
    from sluice.retrieval.documents.where import Where

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


def awaited(method: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return a method that awaits the one of this name, a class's own, in a thread.

    It takes what ``method`` takes, in all its overloads.
    """
    name = method.__name__

    @functools.wraps(method)
    async def waiting(stage: Any, *arguments: Any, **options: Any) -> Any:
        return await asyncio.to_thread(getattr(stage, name), *arguments, **options)

    waiting.__name__ = f"a{name}"
    waiting.__qualname__ = method.__qualname__.removesuffix(name) + waiting.__name__
    waiting.__doc__ = f"``{name}`` in a thread, awaited: other tasks run meanwhile."
    return cast("Callable[P, Coroutine[Any, Any, R]]", waiting)


class Texts(Protocol):
    """Where a stage finds the text of a document: a retriever's document store."""

    def texts(self, document_ids: Sequence[str]) -> list[str]:
        """Return the full texts of documents, in the order of the ids."""
        ...


class Searchable(FamiliarStage, ABC):
    """The same questions for every stage: ``search`` for hits, ``run`` for a run.

    A stage defines ``rank``, which the stages around it call. A class that defines ``run`` in its
    place has it taken as its ``rank``.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Let a ``Trace`` see each ranking, and put what callers may ask before it."""
        super().__init_subclass__(**options)
        own = cls.__dict__
        if "rank" in own or "run" in own:
            both = "rank" in own and "run" in own
            cls.rank = traced(own.get("rank", own.get("run")))  # type: ignore[method-assign]
            if not both:
                cls.run = _front(cls.rank)  # type: ignore[method-assign]

    @abstractmethod
    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Return a ranking for each query, best first; stages around this one call it.

        It may be longer than ``k``, which ``run`` cuts: a fusion has what its parts found.
        """

    @property
    @abstractmethod
    def documents(self) -> Texts | None:
        """Where the texts of this stage's documents are, None if it has no store."""

    @abstractmethod
    def filtered(self, where: Where) -> Searchable:
        """Return the stage that finds only documents that match ``where``."""

    @abstractmethod
    def _hits(self, query: str, k: int) -> list[Hit]:
        """Return the ``k`` best documents for one query."""

    @abstractmethod
    def _hits_of_all(self, queries: Queries, k: int) -> list[list[Hit]]:
        """Return the ``k`` best documents for each query."""

    @renamed(queries="topics query", k=K)
    def run(
        self,
        queries: Asked,
        given: Run | None = None,
        k: int | None = None,
        *,
        where: Where | None = None,
    ) -> Run:
        """Return a ranking for each query, best first, of at most ``k`` documents.

        ``queries`` are texts by id, or a list (ids ``"0"``, ``"1"``, ...) or a Series of texts.
        ``given`` is the run before this stage, for rerankers. Without ``k`` the ranking is as long
        as the stage makes it, 1,000 for a retriever; ``k`` never changes what is found above it.
        ``where`` filters the documents of all retrievers in it by metadata and id, as in
        ``{"lang": "en", "year": {"gte": 2020}}``.
        """
        return _asked(self, type(self).rank, queries, given, k, where)

    @overload
    def search(self, query: str, k: int = 10, *, where: Where | None = None) -> list[Hit]: ...
    @overload
    def search(
        self, query: Several, k: int = 10, *, where: Where | None = None
    ) -> list[list[Hit]]: ...
    @renamed(query=QUERY, k=K, where="filter filters")
    def search(
        self, query: str | Several, k: int = 10, *, where: Where | None = None
    ) -> list[Hit] | list[list[Hit]]:
        """Return the ``k`` best documents for one query, or a list of them for each of several.

        ``where`` filters by metadata and id, as in ``run``.
        """
        stage = self if where is None else self.filtered(where)
        with one_state():
            if isinstance(query, str):
                return stage._hits(query, k)
            return stage._hits_of_all(several(query), whole_number(k, "k", 1))

    asearch = awaited(search)
    arun = awaited(run)


class TextsOf:
    """The store of a stage, which is another one after each change of a retriever's documents."""

    def __init__(self, stage: Searchable) -> None:
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
    whole = getattr(store, "documents_of", None)
    if callable(whole):
        return list(whole(doc_ids))
    texts = store.texts(list(doc_ids))
    return [Document(doc_id, "", text) for doc_id, text in zip(doc_ids, texts, strict=True)]


def searched(
    run: Callable[[Queries, Run | None, int], Run],
    documents: Texts | None,
    query: str,
    k: int,
    passages_of: PassagesOf | None = None,
) -> list[Hit]:
    """Return the ``k`` best documents for one query that ``run`` finds, with their texts.

    ``passages_of`` names the hits' passages from the trace of ``run``; without it they have none.
    """
    if not isinstance(query, str):
        raise ConfigError(f"query: {query!r}; expected text")
    k = whole_number(k, "k", 1)
    with keeping_passages(passages_of is not None) as spans:
        ranking = run({"query": query}, None, k)["query"][:k]
    doc_ids = list(ranking.doc_ids)
    passages: list[Passage | None] = [None] * len(doc_ids)
    if passages_of is not None and spans:
        passages = passages_of(query, doc_ids, spans[-1])
    found = zip(ranking, documents_in(documents, doc_ids), passages, strict=True)
    return [
        Hit(doc_id, score, document.text, document.title, document.metadata, passage)
        for (doc_id, score), document, passage in found
    ]


def all_searched(
    run: Callable[[Queries, Run | None, int], Run],
    documents: Texts | None,
    queries: Queries,
    k: int,
    passages_of: PassagesOf | None = None,
) -> list[list[Hit]]:
    """Return the hits of each query, all searched together; one by one where passages are named."""
    if passages_of is not None:
        return [searched(run, documents, text, k, passages_of) for text in queries.values()]
    found = run(queries, None, k)

    def ranked(name: str) -> Callable[[Queries, Run | None, int], Run]:
        return lambda asked, given, k: Run(dict.fromkeys(asked, found[name]))

    return [searched(ranked(name), documents, text, k) for name, text in queries.items()]


def several(queries: Any) -> Queries:
    """Return the queries of a search by their place; ``ConfigError`` for anything but a list."""
    if hasattr(queries, "columns"):
        return as_queries(queries)
    if isinstance(queries, dict) or not hasattr(queries, "__iter__"):
        raise ConfigError(
            f"query: {queries!r:.80}; expected text or a list of texts (run takes queries by id)"
        )
    return as_queries(list(queries))


def _asked(
    stage: Searchable,
    rank: Callable[..., Run],
    queries: Asked,
    given: Run | None,
    k: int | None,
    where: Where | None,
) -> Run:
    if where is not None:
        return stage.filtered(where).run(queries, given, k)
    if k is not None:
        k = whole_number(k, "k", 0)
    with one_state(), partial_results() as absent:
        run = cut_to(rank(stage, as_queries(queries), given, k), k)
    run.partial = tuple(absent) or run.partial
    return run


def cut_to(run: Run, k: int | None) -> Run:
    """Return the run with at most ``k`` documents per query, the same object if it has no more."""
    if k is None or (run.columns is None and all(len(ranking) <= k for ranking in run.values())):
        return run
    return run.top(k)


def _front(rank: Callable[..., Run]) -> Callable[..., Run]:
    """Return the ``run`` of a class with this ``rank``: ``super().run`` then finds its parent's."""

    @renamed(queries="topics", k=K)
    @functools.wraps(Searchable.run)
    def run(
        self: Searchable,
        queries: Asked,
        given: Run | None = None,
        k: int | None = None,
        *,
        where: Where | None = None,
    ) -> Run:
        return _asked(self, rank, queries, given, k, where)

    return run
