"""Fits how deep a reranker looks and how much the earlier score counts, on judged queries."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import finite_number, whole_number
from sluice.encoders.objects import as_scorer
from sluice.retrieval.evaluation.judgements import Judgements
from sluice.retrieval.evaluation.measures import Measure, compute, parse_measure, settled
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.pipelines.fitting.choice import (
    WIDTH,
    Gain,
    QueryFit,
    Sample,
    Settings,
    Unfitted,
    gain_over,
    judged_queries,
)
from sluice.retrieval.pipelines.rerank import Rerank
from sluice.retrieval.pipelines.scorer import ScorerHooks, ScorerLike
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.runs.queries import DEPTH
from sluice.retrieval.runs.run import Ranking, Run

Array = NDArray[np.float64]
Setting = tuple[int, float]  # depth, share of the earlier score

DEPTHS = (5, 10, 15, 20, 30, 50, 75, 100, 150, 200)
SHARES = tuple(round(0.1 * step, 1) for step in range(10))


RERANKED = 50  # documents that a reranker is tried on, at most


class UnfittedRerank(Unfitted):
    """A reranker whose depth, at most ``depth``, and share of the earlier score are open."""

    needs_candidates = True
    most_queries = 300  # whose pairs are scored

    def __init__(
        self,
        scorer: ScorerLike,
        measure: str = "nDCG@10",
        *,
        depth: int = RERANKED,
        queries: int | None = None,
        documents: Texts | None = None,
        label: str = "",
    ) -> None:
        self.scorer: Any = as_scorer(scorer)
        self.measure, self.depth, self.queries = measure, depth, queries
        self._documents = documents
        self.label = label or ScorerHooks(self.scorer).name
        self.name = f"fitted({self.label})"

    def attached(self, documents: Texts) -> UnfittedRerank:
        """Return the open reranker with a store, unless it has its own."""
        stage = copy.copy(self)
        stage._documents = self._documents or documents
        return stage

    def labelled(self, label: str) -> UnfittedRerank:
        """Return it with the name that its scorer has in the pipeline."""
        stage = copy.copy(self)
        stage.label, stage.name = label, f"fitted({label})"
        return stage

    def with_settings(self, depth: int, interpolate: float = 0.0) -> Rerank:
        """Return the reranker with these settings."""
        return Rerank(
            self.scorer, depth, interpolate=interpolate, documents=self._documents,
            name=called(self.label, depth, interpolate),
        )  # fmt: skip

    def fit(self, sample: Sample, measure: Measure, first: Stage | None) -> RerankFit:
        """Return the settings that the judged queries support; each of its pairs is scored once."""
        stage = self._after(first)
        run = sample.run(stage)
        head = run.top(self.depth)
        scored = self.with_settings(self.depth).rank(sample.queries, head, self.depth)
        steps = not ScorerHooks(self.scorer).scores_lists
        fit = fit_rerank(
            run, scored, sample.qrels, measure, depth=self.depth, steps=steps, name=self.label
        )
        return replace(fit, parts=tuple(sorted(stage.leaves)))

    def unjudged(self, measure: Measure, reason: str, first: Stage | None) -> RerankFit:
        """Return depth 0: the first stage as it is."""
        stage = self._after(first)
        why = f"kept the first stage as it is, without {self.label}: {reason}"
        parts = tuple(sorted(stage.leaves))
        return RerankFit(
            0, 0.0, self.label, stage.name, str(measure), why=why, judged=False, parts=parts
        )

    def closed(self, fit: QueryFit) -> Stage | None:
        """Return the reranker with the settings of a fit."""
        return (
            self.with_settings(fit.depth, fit.interpolate) if isinstance(fit, RerankFit) else None
        )

    def _after(self, first: Stage | None) -> Stage:
        if first is None:
            raise ConfigError(f"{self.name}: a reranker needs candidates; write first >> fitted()")
        return first


def called(scorer: str, depth: int, interpolate: float) -> str:
    """Return the call of a reranker: ``cross(depth=20)``, ``dot(bm25, depth=20)``."""
    options = f"depth={depth}" + (f", interpolate={interpolate:g}" if interpolate else "")
    return f"{scorer[:-1]}, {options})" if scorer.endswith(")") else f"{scorer}({options})"


def settings_up_to(depth: int, *, steps: bool = True) -> list[Setting]:
    """Return depth 0 first, then the depths up to ``depth`` with every share.

    Without ``steps`` only the ends are tried, for scorers of whole lists.
    """
    depths = [each for each in DEPTHS if steps and each < depth] + [depth]
    return [(0, 0.0), *product(depths, SHARES)]


class RerankSearch:
    """Reranks the lists of ``first`` by the scores that ``scored`` has of their heads.

    Both are runs of the judged queries; every query's head in ``scored`` holds the same documents
    as the first ones of its list.
    """

    def __init__(self, first: Run, scored: Run, qrels: Qrels, measure: Measure) -> None:
        grades = [grade for judged in qrels.values() for grade in judged.values()]
        self.measure = settled(measure, np.array(grades, np.int64))
        self.queries = len(qrels)
        empty = Ranking([], [])
        heads = {query: _by_document(scored.get(query, empty)) for query in qrels}
        width = max(self.measure.cutoff or DEPTH, *map(len, heads.values()), 1)
        lists = [first.get(query, empty)[:width] for query in qrels]
        self._lengths = np.array([len(each) for each in lists], np.int64)
        self._retrieved = np.array([len(first.get(query, empty)) for query in qrels], np.int64)
        shape = (len(lists), int(self._lengths.max(initial=0)))
        self._earlier, self._scores = np.zeros(shape), np.zeros(shape)
        self._scored = np.zeros(shape, np.bool_)
        self._judged, self._grades = np.zeros(shape, np.bool_), np.zeros(shape, np.int64)
        for row, (query, ranking) in enumerate(zip(qrels, lists, strict=True)):
            self._fill(row, ranking, heads[query], qrels[query])
        counts = [len(judged) for judged in qrels.values()]
        self._judged_query = np.repeat(np.arange(len(counts)), counts)
        self._judged_grade = np.array(grades, np.int64)

    def _fill(
        self, row: int, ranking: Ranking, head: Mapping[str, float], judged: Mapping[str, int]
    ) -> None:
        size = len(ranking)
        self._earlier[row, :size] = ranking.scores
        for place, name in enumerate(ranking.doc_ids):
            if name in head:
                self._scores[row, place], self._scored[row, place] = head[name], True
            if name in judged:
                self._judged[row, place], self._grades[row, place] = True, judged[name]

    def values(self, depth: int, share: float) -> Array:
        """Return the measure by query when the first ``depth`` are reranked."""
        places = np.arange(self._earlier.shape[1])
        order = np.tile(places, (self.queries, 1))
        head = self._scored[:, :depth]
        if depth and head.size:
            mixed = self._scores[:, :depth]
            if share:
                earlier = _z_scores(self._earlier[:, :depth], head)
                mixed = (1 - share) * _z_scores(mixed, head) + share * earlier
            keys = np.where(head, -mixed.astype(np.float32), np.inf)
            order[:, : head.shape[1]] = np.argsort(keys, axis=1, kind="stable")
        judged = np.take_along_axis(self._judged, order, axis=1)
        query, rank = np.nonzero(judged)
        return compute(
            self.measure,
            Judgements(
                hit_query=query,
                hit_rank=rank,
                hit_grade=self._grades[query, order[query, rank]],
                judged_query=self._judged_query,
                judged_grade=self._judged_grade,
                retrieved=self._retrieved,
            ),
        )


def _by_document(ranking: Ranking) -> dict[str, float]:
    return dict(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True))


def _z_scores(scores: Array, there: NDArray[np.bool_]) -> Array:
    """Return each row's scores less their mean, over their deviation; 0 where all are the same."""
    counts = np.maximum(there.sum(axis=1, keepdims=True), 1)
    centred = np.where(there, scores, 0.0)
    centred = np.where(there, scores - centred.sum(axis=1, keepdims=True) / counts, 0.0)
    deviation = np.sqrt((centred**2).sum(axis=1, keepdims=True) / counts)
    lowest = np.where(there, scores, np.inf).min(axis=1, keepdims=True)
    highest = np.where(there, scores, -np.inf).max(axis=1, keepdims=True)
    varied = (highest > lowest) & (deviation > 0)
    scaled: Array = np.where(varied, centred / np.where(varied, deviation, 1.0), 0.0)
    return scaled


DEPTH_STEP = WIDTH / 2  # how far neighbouring depths are from each other, for the smoothing


@dataclass(frozen=True, slots=True)
class RerankFit(QueryFit):
    """A reranker's depth and share of the earlier score, and how well it does with them.

    ``value`` is the mean of ``measure`` with them, ``first`` that of the candidates as they are,
    ``full`` at the largest depth by the scorer alone. ``held_out`` is an honest ``value``: each
    fifth of the queries is scored by what is chosen on the others. ``gain`` is how far that is
    above ``first``, with a 95 % bootstrap interval. A depth of 0 leaves the candidates as they are.
    ``parts`` are the retrievers and rerankers that found them, where these are known.
    Without judgements (``judged`` is false) the values are empty and the depth is 0.
    """

    KIND: ClassVar = "rerank"
    TITLE: ClassVar = "reranker"
    MAKER: ClassVar = "`sluice fit rerank`"

    depth: int
    interpolate: float
    scorer: str
    candidates: str
    measure: str
    value: float | None = None
    held_out: float | None = None
    first: float | None = None
    full: float | None = None
    queries: int = 0
    tried: int = 0
    gain: Gain | None = None
    why: str = ""
    judged: bool = True
    parts: tuple[str, ...] = ()
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The choice in a few words: ``cross(depth=20, interpolate=0.4)``."""
        return called(self.scorer, self.depth, self.interpolate)

    @classmethod
    def _parsed(cls, values: dict[str, Any]) -> dict[str, Any]:
        parsed = QueryFit._parsed(values)
        whole_number(values["depth"], "depth", 0)
        if not (isinstance(values["scorer"], str) and isinstance(values.get("origin", {}), dict)):
            raise ConfigError("scorer and origin: expected a name and a mapping")
        if not all(isinstance(part, str) for part in parsed["parts"]):
            raise ConfigError(f"parts: {parsed['parts']!r}; expected names")
        if finite_number(share := values["interpolate"], "interpolate", 0) > 1:
            raise ConfigError(f"interpolate: {share!r}; expected a share from 0 to 1")
        return parsed


def fit_rerank(
    first: Run,
    scored: Run,
    qrels: Qrels,
    measure: str | Measure = "nDCG@10",
    *,
    depth: int | None = None,
    steps: bool = True,
    name: str = "",
) -> RerankFit:
    """Choose depth and interpolation of a reranker by the mean of a measure on judged queries.

    ``scored`` has the scorer's scores of the first ``depth`` documents of every list in ``first``
    (by default as many as it has): ``Rerank(scorer, depth).run(queries, first.top(depth))``. Every
    pair is scored once; each depth up to it (unless ``steps`` is false: the largest only) is tried
    with the shares 0, 0.1 ... 0.9 of the earlier score. What is taken is found by smoothed bagging
    (``fitting.choice``), and kept only if its mean is more than one standard error above that of
    the first stage, and the held-out mean above it; otherwise the depth is 0. Give the queries of a
    dev or train split.

    Raises ``ConfigError`` for an unknown measure and ``DataError`` if no query is judged.
    """
    measure = parse_measure(measure)
    judged = judged_queries(qrels, [first], "fit_rerank")
    if depth is None:
        depth = max((len(scored[query]) for query in judged if query in scored), default=0)
    settings = settings_up_to(whole_number(depth, "depth", 1), steps=steps)
    search = RerankSearch(first, scored, judged, measure)
    values = np.array([search.values(*setting) for setting in settings])
    depths = sorted({depth for depth, _ in settings[1:]})
    points = np.array([(DEPTH_STEP * depths.index(d), share) for d, share in settings[1:]])
    place, held = Settings(values, points, or_none=True).chosen()
    means = values.mean(axis=1).tolist()
    full = means[settings.index((depth, 0.0))]
    fit = RerankFit(
        depth=settings[place][0],
        interpolate=settings[place][1],
        scorer=name or scored.name,
        candidates=first.name,
        measure=str(measure),
        value=means[place],
        held_out=None if held is None else float(held.mean()),
        first=means[0],
        full=full,
        queries=len(judged),
        tried=len(settings),
        gain=gain_over(held, values[0]),
    )
    choice = f"chose {fit.shown}"
    if not fit.depth:
        choice = f"kept the first stage as it is, no {fit.scorer},"
    return fit.explained(choice, {"the first stage": means[0], f"all by {fit.scorer}": full})
