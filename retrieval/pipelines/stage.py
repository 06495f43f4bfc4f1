"""Stages and their algebra: ``a >> b`` then, ``a % k`` cut, ``a | b`` fuse."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.documents.document import Document
from sluice.retrieval.pipelines.fusion.fusion import Fusion
from sluice.retrieval.pipelines.hit import SHOWN, Hit, Passage, short
from sluice.retrieval.pipelines.tracing import Span, keeping_passages, traced
from sluice.retrieval.runs.queries import DEPTH, Queries
from sluice.retrieval.runs.run import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluice.retrieval.documents.where import Where


class Texts(Protocol):
    """Where a stage finds the text of a document: a retriever's document store."""

    def texts(self, document_ids: Sequence[str]) -> list[str]:
        """Return the full texts of documents, in the order of the ids."""
        ...


def documents_in(store: Texts | None, doc_ids: Sequence[str]) -> list[Document]:
    """Return documents by id; those of a store of plain texts have neither title nor metadata."""
    if store is None or not doc_ids:
        return [Document(doc_id, "", "") for doc_id in doc_ids]
    whole = getattr(store, "documents_of", None)
    if callable(whole):
        return list(whole(doc_ids))
    texts = store.texts(list(doc_ids))
    return [Document(doc_id, "", text) for doc_id, text in zip(doc_ids, texts, strict=True)]


class Stage(ABC):
    """A step of a pipeline: queries, and the run so far, to a run.

    Every operator returns a stage again. Retrievers ignore the run they are given; rerankers need
    one. ``k`` is how many documents per query the caller will use: a stage may return fewer, if it
    finds fewer, or more, if it has them anyway.

    A stage made of others overrides ``inner`` and ``over``; its store, filter and cost follow. The
    other hooks have defaults too: ``base_retriever`` and ``base_where`` for stages that look into
    its index, ``least_score`` for fusions, ``ranking_models`` for prices and the check of circular
    evaluation, ``looks_inside`` for stress tests.
    """

    name: str = ""
    # Whether it reads the index of its retrievers instead of running them: a stress test then
    # cannot replace a document for it.
    looks_inside: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Let a ``Trace`` see each run of the stage."""
        super().__init_subclass__(**options)
        if "run" in cls.__dict__:
            cls.run = traced(cls.run)  # type: ignore[method-assign]

    @abstractmethod
    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Return a ranking for each query, best first.

        It may be longer than ``k``: ``stage % k`` and ``Run.top(k)`` cut.
        """

    @property
    def inner(self) -> tuple[Stage, ...]:
        """The stages this one is made of, none of most."""
        return ()

    def over(self, inner: Sequence[Stage]) -> Stage:
        """Return the same stage made of others, one for each of ``inner``."""
        return self

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
    def names_passages(self) -> bool:
        """Whether it can say by which passage it found a document."""
        return any(stage.names_passages for stage in self.inner)

    def passages_of(self, query: str, doc_ids: Sequence[str], span: Span) -> list[Passage | None]:
        """Return the passage that gave each document its place, None where no part knows it.

        ``span`` is the trace of the stage's run for this query alone. The default takes it from the
        first of the parts that ran and name one; a stage that prefers another overrides this.
        """
        return passages_by(span.inner, query, doc_ids)

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

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """Return the ``k`` best documents for one query."""
        passages = self.passages_of if self.names_passages else None
        return searched(self.run, self.documents, query, k, passages)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({short(self.name, 2 * SHOWN)!r})"

    def __rshift__(self, second: Stage) -> Then:
        return Then(self, second) if isinstance(second, Stage) else NotImplemented

    def __mod__(self, k: int) -> Cut:
        return Cut(self, k)

    def __or__(self, other: Stage) -> Fuse:
        return Fuse.joining(self, other) if isinstance(other, Stage) else NotImplemented


def _size(store: Texts) -> int:
    """Return the number of documents in a store, -1 for one without ``len``."""
    return len(store) if isinstance(store, Sized) else -1


def searched(
    run: Callable[[Queries, Run | None, int], Run],
    documents: Texts | None,
    query: str,
    k: int,
    passages_of: Callable[[str, Sequence[str], Span], list[Passage | None]] | None = None,
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


def passages_by(parts: Sequence[Span], query: str, doc_ids: Sequence[str]) -> list[Passage | None]:
    """Return each document's passage from the first of the parts that names it."""
    found: list[Passage | None] = [None] * len(doc_ids)
    for part in parts:
        left = [place for place, passage in enumerate(found) if passage is None]
        if left and part.stage.names_passages:
            named = part.stage.passages_of(query, [doc_ids[place] for place in left], part)
            for place, passage in zip(left, named, strict=True):
                found[place] = passage
    return found


class Then(Stage):
    """``first >> second``: the second stage works on what the first returns."""

    inner: tuple[Stage, ...] = ()

    def __init__(self, first: Stage, second: Stage) -> None:
        self.first = first
        self.second = second if first.documents is None else second.attached(first.documents)
        self.inner = (self.first, self.second)
        self.name = f"{first.name} >> {second.name}"

    @property
    def needs_candidates(self) -> bool:
        """Whether the first stage needs them; the second gets those of the first."""
        return self.first.needs_candidates

    def over(self, inner: Sequence[Stage]) -> Stage:
        """Return ``>>`` of two other stages."""
        return Then(*inner)

    def passages_of(self, query: str, doc_ids: Sequence[str], span: Span) -> list[Passage | None]:
        """Ask the second stage, which had the last word, before the first."""
        return passages_by(span.inner[::-1], query, doc_ids)

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Run the first stage to its full depth, then the second on its run."""
        return self.second.run(queries, self.first.run(queries, given, max(DEPTH, k or 0)), k)


class Cut(Stage):
    """``stage % k``: at most the first ``k`` documents; a retriever then searches no deeper."""

    inner: tuple[Stage, ...] = ()
    base_retriever = None  # it returns less than the retriever

    def __init__(self, stage: Stage, k: int) -> None:
        self.stage = stage
        self.inner = (stage,)
        self.k = k = whole_number(k, "the cut of %", 1)
        self.name = f"({stage.name}) % {k}" if " " in stage.name else f"{stage.name} % {k}"

    @property
    def least_score(self) -> float | None:
        """The least score of the stage that is cut."""
        return self.stage.least_score

    def over(self, inner: Sequence[Stage]) -> Stage:
        """Return the cut of another stage."""
        (stage,) = inner
        return Cut(stage, self.k)

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Run the stage for no more documents than the cut lets through."""
        depth = self.k if k is None else min(k, self.k)
        return self.stage.run(queries, given, depth).top(self.k)


class Fuse(Stage):
    """Fuse the runs of ``stages``: by reciprocal rank, normalised scores, or another method.

    ``Fusion`` has the methods and what the options mean; ``method`` may also be one. Weights are 1
    unless given, one per stage. Raises ``ConfigError`` for any other value.
    """

    inner: tuple[Stage, ...] = ()
    base_retriever = None  # even a single list is scored anew

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        method: str | Fusion = "rrf",
        rank_constant: float = 60,
        weights: Sequence[float] | None = None,
        normalise: str = "min-max",
        minimum: float | Sequence[float | None] | None = None,
    ) -> None:
        if not isinstance(method, Fusion):
            if rank_constant == 0:
                raise ConfigError("fusion: rank_constant=0; expected a number above 0")
            method = Fusion(method, weights, normalise, minimum, rank_constant=rank_constant)
        if method.weights is not None and len(method.weights) != len(stages):
            raise ConfigError(f"fusion: {len(method.weights)} weights for {len(stages)} stages")
        if isinstance(method.minimum, (list, tuple)) and len(method.minimum) != len(stages):
            raise ConfigError(
                f"fusion: {len(method.minimum)} values of minimum for {len(stages)} stages"
            )
        self.stages = self.inner = tuple(stages)
        self.fusion = method
        joint = " | " if self._plain else ", "
        names = joint.join(stage.name for stage in stages)
        self.name = f"({names})" if self._plain else f"{method.method}({names})"

    @classmethod
    def joining(cls, left: Stage, right: Stage) -> Fuse:
        """Return ``left | right``; ``a | b | c`` is one fusion of three lists, not two of two."""
        parts: list[Stage] = []
        for stage in (left, right):
            parts += stage.stages if isinstance(stage, Fuse) and stage._plain else [stage]
        return cls(parts)

    @property
    def _plain(self) -> bool:
        return self.fusion == Fusion()

    def over(self, inner: Sequence[Stage]) -> Stage:
        """Return the fusion of other stages."""
        return Fuse(inner, method=self.fusion)

    def passages_of(self, query: str, doc_ids: Sequence[str], span: Span) -> list[Passage | None]:
        """Ask for each document the stage that ranked it best, of those that name passages."""
        parts = [part for part in span.inner if part.stage.names_passages and part.result]
        ranks = [
            {name: rank for rank, name in enumerate(part.result["query"].doc_ids)}
            for part in parts
            if part.result is not None
        ]
        found: list[Passage | None] = [None] * len(doc_ids)
        chosen: dict[int, list[int]] = {}
        for place, name in enumerate(doc_ids):
            ranked = [(rank[name], part) for part, rank in enumerate(ranks) if name in rank]
            if ranked:
                chosen.setdefault(min(ranked)[1], []).append(place)
        for number, places in chosen.items():
            part = parts[number]
            named = part.stage.passages_of(query, [doc_ids[place] for place in places], part)
            for place, passage in zip(places, named, strict=True):
                found[place] = passage
        return found

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Run every stage to its full depth and fuse their runs."""
        depth = max(DEPTH, k or 0)
        runs = [stage.run(queries, given, depth) for stage in self.stages]
        fusion = self.fusion
        if fusion.normalise == "theoretical-min" and fusion.minimum is None:
            fusion = replace(fusion, minimum=[_least_score_of(stage) for stage in self.stages])
        return fusion.fuse(runs)


def _least_score_of(stage: Stage) -> float:
    if (least := stage.least_score) is not None:
        return least
    raise ConfigError(
        f"normalise='theoretical-min': the least score of {stage.name} is not known; give "
        "minimum=, a number or one for each stage, such as 0 for BM25 and SPLADE, -1 for cosine"
    )
