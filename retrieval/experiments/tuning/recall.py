"""Parts of a pipeline that remember: what they found, what it scored, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.retrieval.documents.where import Where
from sluice.retrieval.pipelines.remembered_scores import ScoreMemory, remembered
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.pipelines.tracing import Span, note, tracing
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking, Run

Costs = NDArray[np.float64]  # milliseconds of each timed query
COST = "cost"  # the fact of a span that says what the stage costs, whatever it took now


class Spent(NamedTuple):
    """What a stage costs: milliseconds of each timed query; money and pairs scored per query."""

    milliseconds: Costs
    price: float = 0.0
    pairs: float = 0.0


CostOf = Callable[[Stage, Span, int | None], Spent]


class Remembered:
    """A scorer whose scores are kept by query and document: a list is scored once."""

    def __init__(self, scorer: Any, name: str, *, plain: Any = None) -> None:
        self.scorer = scorer
        self.plain = scorer if plain is None else plain  # without a cache, to be timed
        self.name = name
        self.scored = 0
        self._memory: ScoreMemory[tuple[str, str]] = ScoreMemory()

    def score_lists(
        self, queries: Queries, heads: Mapping[str, Ranking], documents: Texts | None
    ) -> Mapping[str, Any]:
        """Return the scores of each query's candidates; what is not known is scored first."""
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
        asked = {query: queries[query] for query in lists}
        plain = Rerank(self.scorer, depth, documents=documents, name=self.name)
        with tracing():  # of its own: what it takes now is no cost of the pipeline
            run = plain.run(asked, Run(lists))
        scores = {
            (query, doc): score
            for query, ranking in run.items()
            for doc, score in zip(ranking.doc_ids, ranking.scores.tolist(), strict=True)
        }
        return np.array([scores[pair] for pair in pairs], np.float32)


class _Kept:
    """A stage's runs by depth, each made once, and what they cost."""

    def __init__(self, stage: Stage, cost: CostOf) -> None:
        self._stage = stage
        self._cost = cost
        self._runs: dict[int | None, tuple[Run, Spent]] = {}

    def run(self, queries: Queries, k: int | None) -> Run:
        if k not in self._runs:
            with tracing() as spans:
                found = self._stage.run(queries, None, k)
            self._runs[k] = found, self._cost(self._stage, spans[0], k)
        found, cost = self._runs[k]
        note({COST: cost})
        return found


class Recalled(Stage):
    """A stage that finds documents by itself; its run for each depth, and its cost, are kept.

    ``cost`` makes the cost from the spans of a run of the stage to a depth. A run that is given
    lists is made anew: what the stage finds may depend on them.
    """

    def __init__(self, stage: Stage, cost: CostOf) -> None:
        self.stage = self.plain = stage
        self.name = stage.name
        self._cost = cost
        self._kept = _Kept(stage, cost)

    @property
    def inner(self) -> tuple[Stage, ...]:
        """The stage that is recalled."""
        return (self.stage,)

    @property
    def least_score(self) -> float | None:
        """The stage's."""
        return self.stage.least_score

    def over(self, inner: Sequence[Stage]) -> Stage:
        """Return another stage that is recalled; this one with what it found for the same."""
        (stage,) = inner
        return self if stage is self.stage else recalled(stage, self._cost)

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Return what the stage found to this depth; every call asks the same queries."""
        if given is not None:
            return self.stage.run(queries, given, k)
        return self._kept.run(queries, k)


class RecalledRetriever(Retriever):
    """A retriever whose run for each depth, and its cost, are kept, whatever lists it is given.

    It is one still: stages that look into a retriever (its index, its encoder) do so as ever.
    """

    def __init__(self, retriever: Retriever, cost: CostOf) -> None:
        super().__init__(retriever.state)
        self._lock = retriever._lock
        self.plain = retriever  # a temporary folder lives as long
        self._kept = _Kept(retriever, cost)

    def run(
        self,
        queries: Queries,
        given: Run | None = None,
        k: int | None = None,
        *,
        where: Where | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Run:
        """Return what was found to this depth; every call asks the same queries."""
        if where is not None or params:
            return self.plain.run(queries, given, k, where=where, params=params)
        return self._kept.run(queries, k)


def recalled(stage: Stage, cost: CostOf) -> Stage:
    """Return the stage with its runs kept, a retriever as one.

    What is kept already, or needs the lists of another, is returned as it is.
    """
    if isinstance(stage, (Recalled, RecalledRetriever)) or stage.needs_candidates:
        return stage
    return RecalledRetriever(stage, cost) if isinstance(stage, Retriever) else Recalled(stage, cost)
