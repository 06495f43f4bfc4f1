"""Measures what each stage of a pipeline costs per query, and remembers what it found.

Costs are measured once on this machine, part by part, and summed up for a pipeline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.progress import progress
from sluice.retrieval.documents.where import Where
from sluice.retrieval.pipelines.scorer import ScoreMemory, ScorerHooks, remembered
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.pipelines.tracing import Span, note, tracing
from sluice.retrieval.retrievers.measurements import ASKED
from sluice.retrieval.retrievers.retriever import Retriever, retriever_of
from sluice.retrieval.runs.queries import Asked, Queries, SelfExcluding, as_queries
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.stages.feedback.stage import Feedback

Costs = NDArray[np.float64]  # milliseconds of each timed query
COST = "cost"  # the fact of a span with the measured cost of its stage


class Spent(NamedTuple):
    """What a stage costs: milliseconds of each timed query; money and pairs scored per query."""

    milliseconds: Costs
    price: float = 0.0
    pairs: float = 0.0


CostOf = Callable[[Stage, Span, int | None], Spent]


class Remembered:
    """A scorer that remembers its scores by query and document: each pair is scored once."""

    def __init__(self, scorer: Any, name: str, *, plain: Any = None) -> None:
        self.scorer = scorer
        self.plain = scorer if plain is None else plain  # without a cache, to be timed
        self.name = name
        self.scored = 0
        self._memory: ScoreMemory[tuple[str, str]] = ScoreMemory()

    def score_lists(
        self, queries: Queries, heads: Mapping[str, Ranking], documents: Texts | None
    ) -> Mapping[str, Any]:
        """Return the scores of each query's candidates, scoring the new pairs first."""
        pairs = [(query, doc) for query, head in heads.items() for doc in head.doc_ids]

        def score(places: list[int]) -> NDArray[np.float32]:
            return self._score(queries, [pairs[place] for place in places], documents)

        scores, misses = remembered(pairs, self._memory.found, score, self._memory.add)
        self.scored += misses
        ends = np.cumsum([len(head) for head in heads.values()])
        return dict(zip(heads, np.split(scores, ends[:-1]), strict=True)) if heads else {}

    def _score(
        self, queries: Queries, pairs: Sequence[tuple[str, str]], documents: Texts | None
    ) -> NDArray[np.float32]:
        from sluice.retrieval.pipelines.rerank import Rerank

        missing: dict[str, list[str]] = {}
        for query, doc in pairs:
            missing.setdefault(query, []).append(doc)
        lists = {q: Ranking(docs, np.zeros(len(docs), np.float32)) for q, docs in missing.items()}
        depth = max(len(docs) for docs in missing.values())
        plain = Rerank(self.scorer, depth, documents=documents, name=self.name)
        with tracing():  # of its own: this time is not part of the pipeline's cost
            run = plain.run({query: queries[query] for query in lists}, Run(lists))
        scores = {
            (query, doc): score
            for query, ranking in run.items()
            for doc, score in zip(ranking.doc_ids, ranking.scores.tolist(), strict=True)
        }
        return np.array([scores[pair] for pair in pairs], np.float32)


class _RunsByDepth:
    """A stage's runs by depth, each made once, and their costs."""

    def __init__(self, stage: Stage, cost: CostOf) -> None:
        self._stage = stage
        self._cost = cost
        self._runs: dict[int | None, tuple[Run, Spent]] = {}

    def run(self, queries: Queries, k: int | None) -> Run:
        if k not in self._runs:
            with tracing() as spans:
                run = self._stage.rank(queries, None, k)
            self._runs[k] = run, self._cost(self._stage, spans[0], k)
        run, cost = self._runs[k]
        note({COST: cost})
        return run


class Recalled(Stage):
    """A stage that needs no candidates, with its run and cost for each depth remembered.

    ``cost`` derives the cost from the span of a run to a depth. With lists given, the stage runs
    again: its result may depend on them.
    """

    def __init__(self, stage: Stage, cost: CostOf) -> None:
        self.stage = self.plain = stage
        self.name = stage.name
        self._cost = cost
        self._runs = _RunsByDepth(stage, cost)

    @property
    def inner(self) -> tuple[Stage, ...]:
        """The stage whose runs are remembered."""
        return (self.stage,)

    @property
    def least_score(self) -> float | None:
        """The inner stage's least score."""
        return self.stage.least_score

    def over(self, inner: Sequence[Stage]) -> Stage:
        """Return the recalled form of another stage; for the same stage this one, runs included."""
        (stage,) = inner
        return self if stage is self.stage else recalled(stage, self._cost)

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Return the stage's run to this depth; every call must be for the same queries."""
        if given is not None:
            return self.stage.rank(queries, given, k)
        return self._runs.run(queries, k)


class RecalledRetriever(Retriever):
    """A retriever with its run and cost for each depth remembered, whatever lists it is given.

    It is still a retriever: stages that use its index or encoder can.
    """

    def __init__(self, retriever: Retriever, cost: CostOf) -> None:
        super().__init__(retriever.state)
        self._lock = retriever._lock
        self.plain = retriever  # a temporary folder lives as long
        self._runs = _RunsByDepth(retriever, cost)

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Return the run to this depth; every call must be for the same queries."""
        return self._runs.run(queries, k)

    def run(
        self,
        queries: Asked,
        given: Run | None = None,
        k: int | None = None,
        *,
        where: Where | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Run:
        """Return the run to this depth; with a filter or parameters the plain retriever's."""
        if where is not None or params:
            return self.plain.run(queries, given, k, where=where, params=params)
        return self.rank(as_queries(queries), given, k)


def plain_stage(stage: Stage) -> Stage:
    """Return the stage itself, of one that remembers its runs."""
    return stage.plain if isinstance(stage, Recalled | RecalledRetriever) else stage


def recalled(stage: Stage, cost: CostOf) -> Stage:
    """Return the stage with its runs remembered, a retriever as a retriever.

    A stage that remembers already, or needs candidates, is returned unchanged.
    """
    if isinstance(stage, (Recalled, RecalledRetriever)) or stage.needs_candidates:
        return stage
    return RecalledRetriever(stage, cost) if isinstance(stage, Retriever) else Recalled(stage, cost)


WARM = 3  # queries before the clock counts
COUNTS = (1, 5, 20, 50)  # pairs that a reranker is timed with


class PairCost(NamedTuple):
    """Milliseconds to score a query's pairs: ``fixed``, and ``each`` per pair."""

    fixed: float
    each: float

    def milliseconds(self, pairs: Costs) -> Costs:
        """Return the milliseconds for numbers of pairs; 0 for no pair."""
        return np.where(pairs > 0, self.fixed + self.each * pairs, 0.0)


class CostModel:
    """Milliseconds and money per query, for pipelines whose parts are measured one by one.

    A retriever, with or without feedback, is timed on the sampled queries one at a time, to the
    depth that the pipeline needs. A reranker is timed on lists of several lengths, to which a line
    is fitted. The rest (fusion, ordering, scorers of lists) counts as measured over the batch.
    ``prices`` are per pair, by the reranker among ``scorers`` that scores it in the end.
    """

    def __init__(self, timed: Queries, prices: Mapping[str, float] | None = None) -> None:
        self.timed = timed
        self.prices = dict(prices or {})
        self.pairs: dict[str, PairCost] = {}
        self.scorers: list[tuple[str, Any]] = []  # the plain ones by name, for their prices
        self._retrievers: dict[tuple[Stage, int | None], Costs] = {}

    def time_retriever(self, retriever: Stage, k: int | None) -> Costs:
        """Return the milliseconds of each timed query at this depth; measured once."""
        key = (retriever, k)
        if key not in self._retrievers:
            alone = self._one_by_one()
            for query in alone[:WARM]:
                retriever.run(query, None, k)
            self._retrievers[key] = np.array([_milliseconds(retriever, q, k) for q in alone])
        return self._retrievers[key]

    def _one_by_one(self) -> list[Queries]:
        kind = SelfExcluding if isinstance(self.timed, SelfExcluding) else dict
        return [kind({query: text}) for query, text in self.timed.items()]

    def time_scorer(self, name: str, scorer: Any, lists: Run, documents: Texts) -> PairCost:
        """Time a scorer on the first documents of the timed queries' lists, and fit a line."""
        timings: list[tuple[int, float]] = []
        queries = [query for query in self.timed if len(lists.get(query, ()))]
        rounds = [(query, count) for query in queries[: 4 * WARM] for count in COUNTS]
        with progress(f"time {name}", len(rounds), unit="lists") as advance:
            for place, (query, count) in enumerate(rounds):
                texts = documents.texts(list(lists[query].doc_ids)[:count])
                pairs = [(self.timed[query], text) for text in texts]
                start = time.perf_counter()
                scorer.score(pairs)
                if place >= WARM:
                    timings.append((len(pairs), (time.perf_counter() - start) * 1000))
                advance(1)
        self.pairs[name] = fitted_line(timings)
        return self.pairs[name]

    def of_span(self, span: Span) -> Spent:
        """Return what a pipeline's run costs, its parts summed."""
        if COST in span.facts:
            spent: Spent = span.facts[COST]
            return spent
        parts = [self.of_span(part) for part in span.inner]
        pairs = _mean_pairs(span)
        price = self._price(span) * pairs
        return Spent(
            np.sum([self._own(span), *(part.milliseconds for part in parts)], axis=0),
            price + sum(part.price for part in parts),
            pairs + sum(part.pairs for part in parts),
        )

    def of_pipeline(self, stage: Stage, span: Span) -> Spent:
        """Return what a complete pipeline's run costs, as ``measure_latency`` would measure it.

        A retriever alone is timed for the few documents that a user reads.
        """
        plain = plain_stage(stage)
        if isinstance(plain, Feedback) or _is_timed_alone(plain):
            return Spent(self.time_retriever(plain, ASKED))
        return self.of_span(span)

    def of_first(self, stage: Stage, span: Span, k: int | None) -> Spent:
        """Return the cost of a first stage; a retriever is timed for it."""
        if _is_timed_alone(stage) and COST not in span.facts:
            return Spent(self.time_retriever(stage, k))
        return self.of_span(span)

    def _price(self, span: Span) -> float:
        """Return the price of a pair: that of the scorer, or of the one that it calls."""
        for scorer in span.stage.ranking_models:
            while scorer is not None:
                if isinstance(scorer, Remembered):
                    return self.prices.get(scorer.name, 0.0)
                for name, plain in self.scorers:
                    if scorer is plain:
                        return self.prices.get(name, 0.0)
                scorer = ScorerHooks(scorer).inner
        return 0.0

    def _own(self, span: Span) -> Costs:
        name = _scorer_name(span)
        if name in self.pairs:
            counts = np.array([span.facts["pairs"].get(query, 0) for query in self.timed])
            return self.pairs[name].milliseconds(counts.astype(np.float64))
        if isinstance(span.stage, Feedback) and span.result is not None:
            depth = max([1, *map(len, span.result.values())])
            alone = self._one_by_one()
            return np.array([_milliseconds(span.stage, q, depth, span.given) for q in alone])
        queries = len(span.result) if span.result is not None else 0
        return np.full(len(self.timed), span.own_seconds * 1000 / max(1, queries))


def fitted_line(measured: Sequence[tuple[int, float]]) -> PairCost:
    """Return the line of least relative squares through (pairs, milliseconds), 0 at the least."""
    counts = np.array([count for count, _ in measured], np.float64)
    taken = np.maximum([taken for _, taken in measured], 1e-6)
    if len(np.unique(counts)) < 2:
        return PairCost(0.0, float(np.mean(taken / np.maximum(counts, 1))) if len(counts) else 0.0)
    sides = np.stack([np.ones_like(counts), counts], axis=1) / taken[:, None]
    fixed, each = np.linalg.lstsq(sides, np.ones_like(counts), rcond=None)[0].tolist()
    if fixed < 0 or each < 0:
        return PairCost(0.0, float(np.median(taken / counts)))
    return PairCost(fixed, each)


def _is_timed_alone(stage: Stage) -> bool:
    """Return whether a stage is a retriever, or forwards to one, whose cost is not remembered."""
    retriever = retriever_of(stage)
    return retriever is not None and not isinstance(retriever, RecalledRetriever)


def _scorer_name(span: Span) -> str:
    names = (each.name for each in span.stage.ranking_models if isinstance(each, Remembered))
    return next(names, "")


def _mean_pairs(span: Span) -> float:
    pairs = span.facts.get("pairs", {})
    return float(sum(pairs.values()) / max(1, len(pairs)))


def _milliseconds(stage: Stage, query: Queries, k: int | None, run: Run | None = None) -> float:
    start = time.perf_counter()
    stage.run(query, run, k)
    return (time.perf_counter() - start) * 1000
