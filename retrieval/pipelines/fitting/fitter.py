"""``fitted(...)`` of a pipeline, and the one fitter of all such stages, on queries in memory.

What their parts find is searched once for all fits.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated, Any

from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import plural, whole_number
from sluice.retrieval.evaluation.measures import at_level, own_measure, parse_measure
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.pipelines.fitting.choice import FEWEST, QueryFit, Sample, Unfitted, fit_open
from sluice.retrieval.pipelines.fitting.fusion_fit import METHODS_TRIED, FusionFit, UnfittedFusion
from sluice.retrieval.pipelines.fitting.probability_fit import ProbabilityFit
from sluice.retrieval.pipelines.fitting.rerank_fit import RERANKED, RerankFit, UnfittedRerank
from sluice.retrieval.pipelines.fusion.fusion import METHODS
from sluice.retrieval.pipelines.scorer import ScorerHooks
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.runs.queries import DEPTH, Asked, Queries, as_queries
from sluice.retrieval.runs.run import Run

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
        self._sampled: dict[int, Queries] = {}

    def fit(self, stage: Unfitted, first: Stage | None) -> Stage:
        """Return the stage with the settings that were chosen."""
        return closed(stage, self.choose(stage, first))

    def choose(self, stage: Unfitted, first: Stage | None) -> QueryFit:
        """Return the settings of an open stage; ``first`` gives a reranker its candidates."""
        (measure,) = at_level([parse_measure(stage.measure)], self.level)
        if self._reason:
            return stage.unjudged(measure, f"not fitted on judgements ({self._reason})", first)
        return stage.fit(self._sample(stage.queries or stage.most_queries), measure, first)

    @property
    def _reason(self) -> str:
        """Why nothing can be fitted, empty where it can."""
        count = len(self._judged)
        if not count:
            return "there are none outside the test"
        few = f"{plural(count, 'judged query')}, and {FEWEST} are needed"
        return few if count < FEWEST else ""

    def _sample(self, count: int) -> Sample:
        """Return at most so many of the judged queries, the same ones for the same count."""
        count = min(count, len(self._judged))
        kind = type(self.queries) if isinstance(self.queries, dict) else dict
        if count not in self._sampled:
            chosen = self._judged[:count]
            self._sampled[count] = kind({query: self.queries[query] for query in chosen})
        queries = self._sampled[count]

        def run(stage: Stage, candidates: Run | None = None, k: int | None = None) -> Run:
            hits = _remembering(stage, self._runs).rank(queries, candidates, k or DEPTH)
            return hits if k is None else hits.top(k)

        return Sample(queries, {query: self.qrels[query] for query in queries}, run)


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


def closed(stage: Unfitted, fit: QueryFit) -> Stage:
    """Return the stage with these settings.

    ``ConfigError`` for settings of another kind, or of other parts.
    """
    settled = stage.closed(fit)
    if settled is None:
        raise ConfigError(f"{stage.name}: the file has the settings of another kind of stage")
    return settled


def read_fit(path: Path) -> QueryFit:
    """Read the file of a fit of any kind; ``ConfigError`` for another file."""
    values = read_json(path)
    kind = values.get("format") if isinstance(values, dict) else None
    for each in (RerankFit, ProbabilityFit):
        if kind == f"sluice.{each.KIND}":
            return each.load(path)
    return FusionFit.load(path)


def fitted(
    *parts: Any,
    measure: Annotated[str, "What the choice maximises on the dev queries."] = "nDCG@10",
    depth: Annotated[
        int | None, "Hits of each part that are fused (all), or the most that are reranked (50)."
    ] = None,
    queries: Annotated[
        int | None, "Dev queries that are used, at most: 1,000 of a fusion, 300 of a reranker."
    ] = None,
    methods: Annotated[
        list[str] | None, "The fusions that are tried; weighted alone, unless given."
    ] = None,
) -> Unfitted:
    """Return an open fusion, or an open reranker: its settings are chosen on dev queries.

    ``fitted(a, b, ...)`` of two stages or more is a fusion: method, normalisation, weights, and
    which parts are left out. ``first >> fitted(scorer)`` is a reranker: its depth, 0 included, and
    the share of the earlier score. ``measure`` is what counts. ``depth`` is how many hits of each
    part are fused (all), or the most that are reranked (50). ``queries`` bounds how many dev
    queries are used, 5 or more; ``methods`` names the fusions that are tried. Raises
    ``ConfigError`` for anything else.
    """
    if own_measure(measure) is not None:
        raise ConfigError(f"measure {measure!r}: expected one of Sluice's own, as nDCG@10")
    parse_measure(measure)
    if depth is not None:
        depth = whole_number(depth, "depth", 1)
    if queries is not None:
        queries = whole_number(queries, "queries", FEWEST)
    stages = [part for part in parts if isinstance(part, Stage)]
    if len(stages) == len(parts) >= 2:
        for name in methods or ():
            if name not in METHODS:
                raise ConfigError(
                    f"methods: {name!r}; known: {', '.join(METHODS)}{suggest(name, METHODS)}"
                )
        tried = METHODS_TRIED if methods is None else methods
        if not tried:
            raise ConfigError("methods: none given; expected one or more")
        return UnfittedFusion(stages, measure, depth=depth, queries=queries, methods=tried)
    if len(parts) != 1 or stages:
        counts = {"stage": len(stages), "scorer": len(parts) - len(stages)}
        counted = " and ".join(plural(count, noun) for noun, count in counts.items() if count)
        raise ConfigError(
            f"fitted was given {counted or 'nothing'}; it takes two or more stages, fitted(a, b), "
            "or one scorer, a >> fitted(cross)"
        )
    if methods is not None:
        raise ConfigError("methods: belongs to a fusion, fitted(a, b); a reranker has none")
    hooks = ScorerHooks(parts[0])
    if not (hooks.scores_pairs or hooks.scores_lists or callable(parts[0])):
        raise ConfigError(f"{parts[0]!r:.60}; expected a scorer")
    return UnfittedRerank(
        parts[0], measure, depth=RERANKED if depth is None else depth, queries=queries
    )
