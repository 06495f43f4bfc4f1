"""A stage of a pipeline: queries, and the run so far, to a run."""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import is_number, whole_number
from sluice.familiar import QUERY, FamiliarStage, K, renamed
from sluice.indexing.wrappers.fan_out import partial_results
from sluice.retrieval.pipelines.hit import SHOWN, Hit, Passage, TokenMatch, short
from sluice.retrieval.pipelines.saving import NameOf, options_text, save_pipeline
from sluice.retrieval.pipelines.search import (
    Several,
    Texts as Texts,
    awaited,
    hits_of,
    one_state,
)
from sluice.retrieval.pipelines.tracing import Span, traced
from sluice.retrieval.runs.queries import Asked, Queries, as_queries
from sluice.retrieval.runs.run import Run, html_table

if TYPE_CHECKING:
    from sluice.retrieval.documents.where import Where
    from sluice.retrieval.pipelines.operators import Fuse, Weighted


class Stage(FamiliarStage, ABC):
    """A step of a pipeline: queries, and the run so far, to a run.

    Every operator returns a stage again. Retrievers ignore the run they are given; rerankers need
    one. A stage of your own defines ``rank(queries, given, k)``, where ``k`` is how many documents
    per query will be used: it may return fewer, if it finds fewer, or more, if it has them anyway.
    Callers ask it by ``search`` and ``run``.

    A stage made of others overrides ``inner`` and ``over``; its store, filter and cost follow. The
    other hooks have defaults too: ``base_retriever`` and ``base_where`` for stages that look into
    its index, ``least_score`` for fusions, ``ranking_models`` for prices and the check of circular
    evaluation, ``looks_inside`` for stress tests.
    """

    name: str = ""
    # Whether it reads the index of its retrievers instead of running them: a stress test then
    # cannot replace a document for it.
    looks_inside: bool = False
    # numpy's numbers leave * to the stage, as Python's do.
    __array_ufunc__ = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Let a ``Trace`` see each ranking, and put what callers may ask before it.

        A class that defines ``run`` in the place of ``rank`` has it taken as its ``rank``.
        """
        super().__init_subclass__(**options)
        own = cls.__dict__
        for name in ("approximates", "parts_of"):  # hooks of a scorer, which Rerank passes on
            ours = cls.__module__.startswith("sluice.")
            if name in own and not ours and not any(name in vars(each) for each in cls.__mro__[1:]):
                raise ConfigError(
                    f"{cls.__name__}: has {name}, which nothing asks of a stage; give it to a "
                    "scorer, and put that into Rerank"
                )
        if "rank" in own or "run" in own:
            both = "rank" in own and "run" in own
            cls.rank = traced(own.get("rank", own.get("run")))  # type: ignore[method-assign]
            if not both:
                cls.run = _front(cls.rank)  # type: ignore[method-assign]

    @property
    def inner(self) -> tuple[Stage, ...]:
        """The stages this one is made of, none of most."""
        return ()

    def over(self, inner: Sequence[Stage]) -> Stage:
        """Return the same stage made of others, one for each of ``inner``."""
        return self

    @abstractmethod
    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Return a ranking for each query, best first; stages around this one call it.

        It may be longer than ``k``, which ``run`` cuts: a fusion has what its parts found.
        """

    @property
    def needs_candidates(self) -> bool:
        """Whether it works on a run that must be given to it; by default what its parts need."""
        return any(stage.needs_candidates for stage in self.inner)

    @property
    def documents(self) -> Texts | None:
        """Where the texts of this stage's documents are, None if it has no store.

        Of several stores the largest, then the first: one of a pruned corpus lacks some documents.
        """
        stores = [store for stage in self.inner if (store := stage.documents) is not None]
        if stores and _size(stores[0]) >= 0:
            return max(stores, key=_size)
        return stores[0] if stores else None

    @property
    def base_retriever(self) -> Stage | None:
        """The one ``Retriever`` that this stage passes on, for those that look into its index.

        By default that of the only stage it is made of. None without one or with several, and for
        a stage that changes hits or scores, which overrides this.
        """
        if len(self.inner) != 1 or self.needs_candidates:
            return None
        return self.inner[0].base_retriever

    @property
    def base_where(self) -> Where | None:
        """The filter on the documents of ``base_retriever``, None without one."""
        return self.inner[0].base_where if len(self.inner) == 1 else None

    @property
    def ranking_models(self) -> tuple[Any, ...]:
        """The scorers that this stage itself ranks by, without those of its parts."""
        return ()

    @property
    def least_score(self) -> float | None:
        """The least score that the stage can give, None if it is not known.

        Fusions normalise by it (``normalise='theoretical-min'``).
        """
        return None

    @property
    def gives_probabilities(self) -> bool:
        """Whether its scores are chances that the documents are relevant, 0 to 1."""
        return False

    @property
    def lexical(self) -> bool:
        """Whether it ranks by words alone, as BM25 does; by default as its base retriever."""
        base = self.base_retriever
        return base is not None and base is not self and base.lexical

    @property
    def names_passages(self) -> bool:
        """Whether it can say by which passage it found a document."""
        return any(stage.names_passages for stage in self.inner)

    def passages_of(self, query: str, doc_ids: Sequence[str], span: Span) -> list[Passage | None]:
        """Return the passage that gave each document its place, None where no part knows it.

        ``span`` is the trace of the stage's run for this query alone. The default takes it from the
        first of the parts that ran and name one; a stage that prefers another overrides this.
        """
        return passages_by(span.inner, query, doc_ids)

    @property
    def leaves(self) -> frozenset[str]:
        """The names of the retrievers and rerankers it is made of; empty while not all are known.

        They are without options: a fusion's weights and a reranker's depth do not matter.
        """
        parts = [stage.leaves for stage in self.inner]
        own = [] if parts else [self.name.partition("(")[0]]
        return frozenset(own).union(*parts) if all(parts) else frozenset()

    def check_first(self, first: Stage) -> None:
        """Raise ``ConfigError`` if the stage cannot come after ``first``; by default it can."""

    def matches_of(self, query: str, doc_id: str) -> Sequence[TokenMatch]:
        """Return which tokens of a document met those of the query; none where that is not known.

        Of a stage that scores by token vectors itself, see ``TokenMatch``.
        """
        return ()

    def attached(self, documents: Texts) -> Stage:
        """Return the stage with a document store to read texts from, if it needs one."""
        return self.over([stage.attached(documents) for stage in self.inner])

    def filtered(self, where: Where) -> Stage:
        """Return the stage whose retrievers find only documents that match ``where``.

        A reranker's candidates were filtered before. ``ConfigError`` for a stage that finds
        documents without knowing their metadata.
        """
        if not self.inner and self.needs_candidates:
            return self
        if not self.inner:
            raise ConfigError(
                f"{self.name}: where filters the documents of retrievers, and this stage has none"
            )
        filtered = self.over([stage.filtered(where) for stage in self.inner])
        if filtered is self:
            raise ConfigError(
                f"{self.name}: where cannot be put into its retrievers: "
                f"{type(self).__name__}.over returns the stage itself"
            )
        return filtered

    def written(self, name_of: NameOf) -> str:
        """Return the stage as an expression, in which ``name_of`` names retrievers and scorers.

        ``ConfigError`` for a stage that expressions cannot make of these alone.
        """
        raise ConfigError(
            f"{self.name}: a {type(self).__name__} cannot be saved as a pipeline, which holds "
            "retrievers, filters, rerankers, query transforms, |, +, *, % and >>; write it under "
            "pipelines: of an experiment, which load_pipeline opens"
        )

    def save(self, path: str | Path) -> None:
        """Write the pipeline with copies of its parts, in one step; ``load_pipeline`` opens it.

        Nothing is changed by it, and no code is written: functions are given again when it is
        opened. Only an empty folder, or one with a pipeline, is replaced.
        """
        save_pipeline(self, Path(path))

    def _hits(self, query: str | Several, k: int) -> list[Hit] | list[list[Hit]]:
        """Return the ``k`` best documents for one query, or for each of several."""
        passages_of = self.passages_of if self.names_passages else None
        return hits_of(self.rank, self.documents, query, k, passages_of)

    @overload
    def search(
        self,
        query: str,
        k: int | None = None,
        *,
        where: Where | None = None,
        fuse: bool = False,
        context: str | None = None,
        seen: Collection[str] = (),
        budget_tokens: int | None = None,
    ) -> list[Hit]: ...
    @overload
    def search(
        self,
        query: Several,
        k: int | None = None,
        *,
        where: Where | None = None,
        fuse: Literal[True],
        context: str | None = None,
        seen: Collection[str] = (),
        budget_tokens: int | None = None,
    ) -> list[Hit]: ...
    @overload
    def search(
        self,
        query: Several,
        k: int | None = None,
        *,
        where: Where | None = None,
        fuse: Literal[False] = False,
        context: str | None = None,
        seen: Collection[str] = (),
        budget_tokens: int | None = None,
    ) -> list[list[Hit]]: ...
    @renamed(query=QUERY, k=K, where="filter filters")
    def search(
        self,
        query: str | Several,
        k: int | None = None,
        *,
        where: Where | None = None,
        fuse: bool = False,
        context: str | None = None,
        seen: Collection[str] = (),
        budget_tokens: int | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """Return the ``k`` best documents for one query, or a list of them for each of several.

        ``where`` filters by metadata and id, as in ``run``. With ``fuse`` several questions are one
        search: their lists are fused by reciprocal rank. ``context`` is the reasoning so far:
        dense encoders read it behind the question, and BM25 weighs both as a document. ``seen``
        are ids of documents that are left out; others take their places.

        ``k`` is 10 unless given. With ``budget_tokens`` it is as many as fit: of the best 50
        documents, or ``k``, their passages by rank, without repetition. The list, a ``Filled``, has
        their ``tokens`` and what was ``dropped``.
        """
        from sluice.retrieval.pipelines.asking import Asking

        stage = self if where is None else self.filtered(where)
        with one_state():
            return Asking(fuse, context, seen, budget_tokens).hits(stage, query, k)

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
        return _run(self, type(self).rank, queries, given, k, where)

    asearch = awaited(search, lambda stage: stage.search)
    arun = awaited(run, lambda stage: stage.run)

    def _shown(self) -> dict[str, str]:
        """Return what a notebook shows of the stage, by name."""
        parts = {f"part {place}": repr(each) for place, each in enumerate(self.inner, 1)}
        return {"pipeline": short(self.name, 2 * SHOWN), **parts}

    def _repr_html_(self) -> str:
        """Return the stage and its parts as a small table, for notebooks."""
        return html_table(type(self).__name__, (), self._shown().items())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({short(self.name, 2 * SHOWN)!r})"

    def __rshift__(self, second: Stage) -> Stage:
        from sluice.retrieval.pipelines.operators import Then

        return Then(self, second) if isinstance(second, Stage) else NotImplemented

    def __mod__(self, k: int) -> Stage:
        from sluice.retrieval.pipelines.operators import Cut

        return Cut(self, k)

    def __or__(self, other: Stage) -> Fuse:
        from sluice.retrieval.pipelines.operators import Fuse

        return Fuse.joining(self, other) if isinstance(other, Stage) else NotImplemented

    def __add__(self, other: Stage) -> Fuse:
        from sluice.retrieval.pipelines.operators import Fuse

        joined = isinstance(other, Stage)
        return Fuse.joining(self, other, method="weighted") if joined else NotImplemented

    def __radd__(self, zero: int) -> Stage:
        """Return itself for the 0 that ``sum([a, b])`` begins with."""
        return self if is_number(zero) and zero == 0 else NotImplemented

    def __mul__(self, weight: float) -> Weighted:
        from sluice.retrieval.pipelines.operators import Weighted

        return Weighted(self, weight) if is_number(weight) else NotImplemented

    __rmul__ = __mul__


def _run(
    stage: Stage,
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
        run = rank(stage, as_queries(queries), given, k)
        if k is not None and (
            run.columns is not None or any(len(ranking) > k for ranking in run.values())
        ):
            run = run.top(k)
    run.partial = tuple(absent) or run.partial
    return run


def _front(rank: Callable[..., Run]) -> Callable[..., Run]:
    """Return the ``run`` of a class with this ``rank``: ``super().run`` then finds its parent's."""

    @renamed(queries="topics", k=K)
    @functools.wraps(Stage.run)
    def run(
        self: Stage,
        queries: Asked,
        given: Run | None = None,
        k: int | None = None,
        *,
        where: Where | None = None,
    ) -> Run:
        return _run(self, rank, queries, given, k, where)

    return run


def _size(store: Texts) -> int:
    """Return the number of documents in a store, -1 for one without ``len``."""
    return len(store) if isinstance(store, Sized) else -1


def passages_by(parts: Sequence[Span], query: str, doc_ids: Sequence[str]) -> list[Passage | None]:
    """Return each document's passage from the first of the parts that names it."""
    passages: list[Passage | None] = [None] * len(doc_ids)
    for part in parts:
        left = [place for place, passage in enumerate(passages) if passage is None]
        if left and part.stage.names_passages:
            named = part.stage.passages_of(query, [doc_ids[place] for place in left], part)
            for place, passage in zip(left, named, strict=True):
                passages[place] = passage
    return passages


class Around(Stage):
    """A stage around another one, whose queries, documents or scores it changes.

    ``function`` of pipelines makes it, of the stage and of ``models``, with ``options``; without
    options it cannot be saved. A subclass that has more to say of the stage extends ``_take``.
    """

    inner: tuple[Stage, ...] = ()
    base_retriever = None  # it is searched with other queries, or its hits are changed

    def __init__(
        self,
        stage: Stage,
        function: str = "",
        *,
        models: Iterable[Any] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._function, self._models, self._options = function, tuple(models), options
        self._take(stage)

    def _take(self, stage: Any) -> None:
        if not isinstance(stage, Stage):
            raise ConfigError(
                f"{self._function}: {type(stage).__name__}; expected a retriever or a pipeline"
            )
        self.stage = stage
        self.inner = (stage,)
        self.name = f"{self._function}({stage.name})"

    def over(self, inner: Sequence[Stage]) -> Stage:
        """Return the same around another stage."""
        other = copy.copy(self)
        other._take(*inner)
        return other

    def written(self, name_of: NameOf) -> str:
        """Return ``function(stage, ...)``; a file of answers is not one of the options."""
        if self._options is None:
            return super().written(name_of)
        options = options_text({k: v for k, v in self._options.items() if v is not None})
        parts = [self.stage.written(name_of), *map(name_of, self._models)]
        return f"{self._function}({', '.join([*parts, *filter(None, [options])])})"

    @property
    def lexical(self) -> bool:
        """Whether the stage that is searched ranks by words alone."""
        return self.stage.lexical

    @property
    def ranking_models(self) -> tuple[Any, ...]:
        """What it asks."""
        return self._models
