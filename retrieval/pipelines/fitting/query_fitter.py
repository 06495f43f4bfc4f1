"""Fits open stages on queries in memory; what their parts find is searched once for all fits."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.evaluation.measures import Measure, at_level, parse_measure
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.pipelines.fitting.rerank_fit import (
    RerankFit,
    fit_rerank,
    unjudged_rerank,
)
from sluice.retrieval.pipelines.fitting.unfitted import (
    FEWEST,
    Unfitted,
    UnfittedFusion,
    UnfittedRerank,
    fit_open,
)
from sluice.retrieval.pipelines.fusion.fit import FusionFit, fit_fusion
from sluice.retrieval.pipelines.fusion.prior import unjudged_fusion
from sluice.retrieval.pipelines.operators import Fuse
from sluice.retrieval.pipelines.scorer import ScorerHooks
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.runs.queries import DEPTH, Asked, Queries, as_queries
from sluice.retrieval.runs.run import Run

FUSED = 1000  # queries that a fusion is fitted on, at most
RERANKED = 300  # and a reranker, whose pairs are scored

Fit = FusionFit | RerankFit
Runs = dict[tuple[int, int], tuple[Stage, Run]]  # by stage and depth


class QueryFitter:
    """Chooses settings on judged queries; without judgements the settings that cost least.

    ``qrels`` judge ``queries``, which are never those of the test. ``level`` is the least grade
    that is relevant, ``seed`` draws the queries where there are more than are used.
    """

    def __init__(self, queries: Queries, qrels: Qrels, *, level: int = 1, seed: int = 0) -> None:
        judged = [
            query
            for query, grades in qrels.items()
            if query in queries and any(grade >= level for grade in grades.values())
        ]
        random.Random(f"fit {seed}").shuffle(judged)
        self.queries, self.qrels, self.level = queries, qrels, level
        self._judged = judged
        self._runs: Runs = {}
        self._asked: dict[int, Queries] = {}

    def fit(self, stage: Unfitted, first: Stage | None) -> Stage:
        """Return the stage with the settings that were chosen."""
        return closed(stage, self.choose(stage, first))

    def choose(self, stage: Unfitted, first: Stage | None) -> Fit:
        """Return the settings of an open stage; ``first`` gives a reranker its candidates."""
        (measure,) = at_level([parse_measure(stage.measure)], self.level)
        if isinstance(stage, UnfittedRerank):
            return self._rerank(stage, first, measure)
        if isinstance(stage, UnfittedFusion):
            return self._fusion(stage, first, measure)
        raise ConfigError(f"{stage.name}: neither a fusion nor a reranker to fit")

    def _fusion(self, stage: UnfittedFusion, first: Stage | None, measure: Measure) -> FusionFit:
        names = [part.name for part in stage.inner]
        if self._reason:
            lexical = [part.lexical for part in stage.inner]
            return unjudged_fusion(names, lexical, measure, self._reason)
        queries, qrels = self._sample(stage.queries or FUSED)
        given = None if first is None else self._run(first, queries)
        runs = [
            Run(dict(self._run(part, queries, given, stage.depth)), name=part.name)
            for part in stage.inner
        ]
        fit = fit_fusion(runs, qrels, measure, methods=stage.methods)
        return replace(fit, parts=tuple(names))

    def _rerank(self, stage: UnfittedRerank, first: Stage | None, measure: Measure) -> RerankFit:
        name = stage.label
        if first is None:
            raise ConfigError(f"{stage.name}: a reranker needs candidates; write first >> fitted()")
        if self._reason:
            unjudged = unjudged_rerank(name, first.name, measure, self._reason)
            return replace(unjudged, parts=tuple(sorted(first.leaves)))
        queries, qrels = self._sample(stage.queries or RERANKED)
        given = self._run(first, queries)
        scored = stage.chosen(stage.depth).rank(queries, given.top(stage.depth), stage.depth)
        steps = not ScorerHooks(stage.scorer).scores_lists
        fit = fit_rerank(given, scored, qrels, measure, depth=stage.depth, steps=steps, name=name)
        return replace(fit, parts=tuple(sorted(first.leaves)))

    @property
    def _reason(self) -> str:
        """Why nothing can be fitted, empty where it can."""
        count = len(self._judged)
        if not count:
            return "there are none outside the test"
        few = f"{plural(count, 'judged query')}, and {FEWEST} are needed"
        return few if count < FEWEST else ""

    def _sample(self, count: int) -> tuple[Queries, Qrels]:
        """Return at most so many of the judged queries, the same ones for the same count."""
        count = min(count, len(self._judged))
        kind = type(self.queries) if isinstance(self.queries, dict) else dict
        if count not in self._asked:
            chosen = self._judged[:count]
            self._asked[count] = kind({query: self.queries[query] for query in chosen})
        asked = self._asked[count]
        return asked, {query: self.qrels[query] for query in asked}

    def _run(
        self, stage: Stage, queries: Queries, given: Run | None = None, k: int | None = None
    ) -> Run:
        run = _remembering(stage, self._runs).rank(queries, given, k or DEPTH)
        return run if k is None else run.top(k)


def fit_on(stage: Stage, queries: Asked, qrels: Qrels) -> Stage:
    """Return a stage with every ``fitted(...)`` in it fitted on judged queries.

    Give the queries of a dev or train split, never those of the test.
    """
    return fit_open(stage, QueryFitter(as_queries(queries), qrels))


class _Remembered(Stage):
    """A retriever that searches the same queries to the same depth once."""

    inner: tuple[Stage, ...] = ()

    def __init__(self, stage: Stage, runs: Runs) -> None:
        self.inner, self.name, self._runs = (stage,), stage.name, runs

    @property
    def least_score(self) -> float | None:
        """That of the retriever."""
        return self.inner[0].least_score

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Return the remembered run, or search and remember."""
        (stage,) = self.inner
        key = (id(stage), DEPTH if k is None else k)
        _, known = self._runs.get(key, (stage, Run({})))
        if not all(query in known for query in queries):
            known = stage.rank(queries, given, k)
            self._runs[key] = (stage, known)  # the stage is kept, since its id stays taken then
        return Run({query: known[query] for query in queries}, name=known.name)


def _remembering(stage: Stage, runs: Runs) -> Stage:
    """Return the stage over retrievers that remember; one that looks into its own stays so."""
    if stage.looks_inside or (stage.needs_candidates and not stage.inner):
        return stage
    if not stage.inner:
        return _Remembered(stage, runs)
    return stage.over([_remembering(part, runs) for part in stage.inner])


def closed(stage: Unfitted, fit: Fit) -> Stage:
    """Return the stage with these settings; parts of weight 0 are not run, one part stands alone.

    ``ConfigError`` for settings of another kind, or of other parts.
    """
    if isinstance(stage, UnfittedRerank) and isinstance(fit, RerankFit):
        return stage.chosen(fit.depth, fit.interpolate)
    if isinstance(stage, UnfittedFusion) and isinstance(fit, FusionFit):
        fit.check_parts([part.name for part in stage.inner])
        kept = fit.fusion.used(len(stage.inner))
        parts = [stage.inner[place] for place in kept]
        parts = parts if stage.depth is None else [part % stage.depth for part in parts]
        return parts[0] if len(parts) == 1 else Fuse(parts, method=fit.fusion.of_parts(kept))
    raise ConfigError(f"{stage.name}: the file has the settings of another kind of stage")


def read_fit(path: Path) -> Fit:
    """Read the file of a fit of either kind; ``ConfigError`` for another file."""
    values = read_json(path)
    kind = values.get("format") if isinstance(values, dict) else None
    return RerankFit.load(path) if kind == f"sluice.{RerankFit.KIND}" else FusionFit.load(path)
