"""Stages and their algebra: ``a >> b`` then, ``a % k`` cut, ``a | b`` and ``a + b`` fuse."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import finite_number, is_number, whole_number
from sluice.retrieval.pipelines.fusion.fusion import Fusion
from sluice.retrieval.pipelines.hit import SHOWN, Hit, PartScore, Passage, TokenMatch, short
from sluice.retrieval.pipelines.saving import NameOf, options_text, save_pipeline
from sluice.retrieval.pipelines.searchable import (
    PassagesOf,
    Searchable,
    Texts as Texts,
    TextsOf,
    all_searched,
    searched,
)
from sluice.retrieval.pipelines.tracing import Span
from sluice.retrieval.runs.queries import DEPTH, Queries
from sluice.retrieval.runs.run import Ranking, Run, html_table

if TYPE_CHECKING:
    from sluice.retrieval.documents.where import Where


class Stage(Searchable):
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

    @property
    def approximates(self) -> Stage | None:
        """The retriever that scores all documents as this stage does its candidates, or None.

        Its exact search tells which of the best documents the candidates miss.
        """
        return None

    def matches_of(self, query: str, doc_id: str) -> Sequence[TokenMatch]:
        """Return which tokens of a document met those of the query; none where that is not known.

        Of a stage that scores by token vectors itself, see ``TokenMatch``.
        """
        return ()

    def parts_of(self, query: str, doc_id: str) -> Sequence[PartScore]:
        """Return the parts of a document that the stage scored one by one; none by default."""
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

    def _hits(self, query: str, k: int) -> list[Hit]:
        return searched(self.rank, self.documents, query, k, self._names)

    def _hits_of_all(self, queries: Queries, k: int) -> list[list[Hit]]:
        return all_searched(self.rank, self.documents, queries, k, self._names)

    @property
    def _names(self) -> PassagesOf | None:
        return self.passages_of if self.names_passages else None

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
        return Then(self, second) if isinstance(second, Stage) else NotImplemented

    def __mod__(self, k: int) -> Stage:
        return Cut(self, k)

    def __or__(self, other: Stage) -> Fuse:
        return Fuse.joining(self, other) if isinstance(other, Stage) else NotImplemented

    def __add__(self, other: Stage) -> Fuse:
        joined = isinstance(other, Stage)
        return Fuse.joining(self, other, method="weighted") if joined else NotImplemented

    def __radd__(self, zero: int) -> Stage:
        """Return itself for the 0 that ``sum([a, b])`` begins with."""
        return self if is_number(zero) and zero == 0 else NotImplemented

    def __mul__(self, weight: float) -> Weighted:
        return Weighted(self, weight) if is_number(weight) else NotImplemented

    __rmul__ = __mul__


def _size(store: Texts) -> int:
    """Return the number of documents in a store, -1 for one without ``len``."""
    return len(store) if isinstance(store, Sized) else -1


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


class Then(Stage):
    """``first >> second``: the second stage works on what the first returns."""

    inner: tuple[Stage, ...] = ()

    def __init__(self, first: Stage, second: Stage) -> None:
        self.first = first
        self.second = second if first.documents is None else second.attached(TextsOf(first))
        self.inner = (self.first, self.second)
        self.name = f"{first.name} >> {second.name}"

    @property
    def needs_candidates(self) -> bool:
        """Whether the first stage needs them; the second gets those of the first."""
        return self.first.needs_candidates

    def over(self, inner: Sequence[Stage]) -> Stage:
        """Return ``>>`` of two other stages."""
        return Then(*inner)

    def written(self, name_of: NameOf) -> str:
        """Return ``first >> second``."""
        return f"({self.first.written(name_of)}) >> ({self.second.written(name_of)})"

    def passages_of(self, query: str, doc_ids: Sequence[str], span: Span) -> list[Passage | None]:
        """Ask the second stage, which had the last word, before the first."""
        return passages_by(span.inner[::-1], query, doc_ids)

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Run the first stage to its full depth, then the second on its run."""
        return self.second.rank(queries, self.first.rank(queries, given, max(DEPTH, k or 0)), k)


class Cut(Stage):
    """``stage % k``: at most the first ``k`` documents; a retriever then searches no deeper."""

    inner: tuple[Stage, ...] = ()
    base_retriever = None  # it returns less than the retriever

    @property
    def lexical(self) -> bool:
        """Whether the stage that is cut ranks by words alone."""
        return self.stage.lexical

    def __init__(self, stage: Stage, k: int) -> None:
        self.stage = stage
        self.inner = (stage,)
        self.k = k = whole_number(k, "the cut of %", 1)
        closed = isinstance(stage, Fuse) or " " not in stage.name  # a fusion has its brackets
        self.name = f"{stage.name} % {k}" if closed else f"({stage.name}) % {k}"

    @property
    def least_score(self) -> float | None:
        """The least score of the stage that is cut."""
        return self.stage.least_score

    def over(self, inner: Sequence[Stage]) -> Stage:
        """Return the cut of another stage."""
        (stage,) = inner
        return Cut(stage, self.k)

    def written(self, name_of: NameOf) -> str:
        """Return ``stage % k``."""
        return f"({self.stage.written(name_of)}) % {self.k}"

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Run the stage for no more documents than the cut lets through."""
        depth = self.k if k is None else min(k, self.k)
        return self.stage.rank(queries, given, depth).top(self.k)


class Weighted(Stage):
    """``0.3 * stage``: its list with the weight that it has in a fusion, ``0.3 * a + 0.7 * b``.

    By itself it is the stage with its scores multiplied. A cut, or a reranker after it, keeps the
    weight: ``0.3 * a % 100 + 0.7 * b`` fuses the first 100 of a.
    """

    inner: tuple[Stage, ...] = ()
    base_retriever = None  # its scores are others

    @property
    def lexical(self) -> bool:
        """Whether the stage with the weight ranks by words alone."""
        return self.stage.lexical

    def __init__(self, stage: Stage, weight: float) -> None:
        self.stage = stage
        self.inner = (stage,)
        self.weight = finite_number(weight, "the weight of *", 0)
        self.name = f"{self.weight:g} * {stage.name}"

    @property
    def least_score(self) -> float | None:
        """The least score of the stage, times the weight."""
        least = self.stage.least_score
        return None if least is None else self.weight * least

    def over(self, inner: Sequence[Stage]) -> Stage:
        """Return another stage with this weight."""
        (stage,) = inner
        return Weighted(stage, self.weight)

    def written(self, name_of: NameOf) -> str:
        """Return ``weight * stage``."""
        return f"{self.weight!r} * ({self.stage.written(name_of)})"

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Run the stage and multiply its scores."""
        run = self.stage.rank(queries, given, k)
        weight = np.float32(self.weight)
        return Run(
            {query: Ranking(each.doc_ids, weight * each.scores) for query, each in run.items()},
            name=run.name,
        )

    def __rshift__(self, second: Stage) -> Stage:
        stage = self.stage >> second
        return Weighted(stage, self.weight) if isinstance(stage, Stage) else NotImplemented

    def __mod__(self, k: int) -> Stage:
        return Weighted(self.stage % k, self.weight)


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
        self._joined = False
        self.name = self._expression or self._call

    @classmethod
    def joining(cls, left: Stage, right: Stage, *, method: str = "rrf") -> Fuse:
        """Return ``left | right``, or ``left + right`` (``method="weighted"``), as one flat fusion.

        ``a | b | c`` fuses three lists, not two of two. Weights multiply: ``2 * (a + b) + c`` is
        ``2 * a + 2 * b + c``. A cut ends that: ``(a + b) % 100 + c`` fuses two lists.
        """
        parts = [*_parts(left, method), *_parts(right, method)]
        weights = [weight for _, weight in parts]
        fuse = cls(
            [stage for stage, _ in parts],
            method=method,
            weights=None if set(weights) == {1.0} else weights,
        )
        fuse._joined = True
        fuse.name = str(fuse._expression)
        return fuse

    @property
    def leaves(self) -> frozenset[str]:
        """Those of the stages that count: what has weight 0 finds nothing."""
        parts = [self.inner[place].leaves for place in self.fusion.used(len(self.inner))]
        return frozenset[str]().union(*parts) if all(parts) else frozenset()

    def joins(self, method: str) -> bool:
        """Return whether operators write this fusion, so that another of ``method`` can join it."""
        fusion = self.fusion
        if fusion.method != method or replace(fusion, weights=None) != Fusion(method):
            return False
        return fusion.weights is None or method == "weighted" or self._joined

    @property
    def _expression(self) -> str:
        """The fusion as operators write it, empty if they cannot."""
        for method, symbol in (("rrf", " | "), ("weighted", " + ")):
            if self.joins(method):
                weights = self.fusion.weights or [1.0] * len(self.stages)
                parts = zip(self.stages, weights, strict=True)
                return f"({symbol.join(_weighed(stage.name, weight) for stage, weight in parts)})"
        return ""

    @property
    def _call(self) -> str:
        """The fusion as a call in which weights stand behind the stages, for showing."""
        parts = [stage.name for stage in self.stages]
        if self.fusion.weights is not None:
            weights = zip(parts, self.fusion.weights, strict=True)
            parts = [f"{name} {weight:g}" for name, weight in weights]
        return f"{self.fusion.method}({', '.join(parts)})"

    def over(self, inner: Sequence[Stage]) -> Stage:
        """Return the fusion of other stages."""
        fuse = Fuse(inner, method=self.fusion)
        fuse._joined = self._joined
        fuse.name = fuse._expression or fuse.name
        return fuse

    def written(self, name_of: NameOf) -> str:
        """Return ``fused(...)`` of the stages with its method and options: nested ones stay so."""
        changed = {
            each.name: getattr(self.fusion, each.name)
            for each in fields(self.fusion)
            if getattr(self.fusion, each.name) != each.default or each.name == "method"
        }
        parts = ", ".join(stage.written(name_of) for stage in self.stages)
        return f"fused({parts}, {options_text(changed)})"

    def passages_of(self, query: str, doc_ids: Sequence[str], span: Span) -> list[Passage | None]:
        """Ask for each document the stage that ranked it best, of those that name passages."""
        return passages_by_best(span.inner, query, doc_ids)

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Run every stage to its full depth and fuse their runs."""
        depth = max(DEPTH, k or 0)
        runs = [stage.rank(queries, given, depth) for stage in self.stages]
        fusion = self.fusion
        if fusion.normalise == "theoretical-min" and fusion.minimum is None:
            fusion = replace(fusion, minimum=[_least_score_of(stage) for stage in self.stages])
        return fusion.fuse(runs)


def _parts(stage: Stage, method: str) -> list[tuple[Stage, float]]:
    """Return the lists that a stage adds to a fusion, each with its weight."""
    if isinstance(stage, Weighted):
        return [(part, stage.weight * weight) for part, weight in _parts(stage.stage, method)]
    if isinstance(stage, Fuse) and stage.joins(method):
        weights = stage.fusion.weights or [1.0] * len(stage.stages)
        return list(zip(stage.stages, weights, strict=True))
    return [(stage, 1.0)]


def _weighed(name: str, weight: float) -> str:
    return name if weight == 1 else f"{weight:g} * {name}"


def _least_score_of(stage: Stage) -> float:
    if (least := stage.least_score) is not None:
        return least
    raise ConfigError(
        f"normalise='theoretical-min': the least score of {stage.name} is not known; give "
        "minimum=, a number or one for each stage, such as 0 for BM25 and SPLADE, -1 for cosine"
    )
