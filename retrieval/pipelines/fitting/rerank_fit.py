"""Fits how deep a reranker looks and how much the earlier score counts, on judged queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import finite_number, plural, whole_number
from sluice.retrieval.evaluation.fitted_file import FittedFile
from sluice.retrieval.evaluation.judgements import Judgements
from sluice.retrieval.evaluation.measures import Measure, compute, parse_measure, settled
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.pipelines.fitting.unfitted import called
from sluice.retrieval.pipelines.fusion.choice import (
    WIDTH,
    Gain,
    bagged,
    gain_over,
    held_out,
    kernel,
)
from sluice.retrieval.runs.queries import DEPTH
from sluice.retrieval.runs.run import Ranking, Run

Array = NDArray[np.float64]
Setting = tuple[int, float]  # depth, share of the earlier score

DEPTHS = (5, 10, 15, 20, 30, 50, 75, 100, 150, 200)
SHARES = tuple(round(0.1 * step, 1) for step in range(10))


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
class RerankFit(FittedFile):
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
    value: float | None
    held_out: float | None
    first: float | None
    full: float | None
    queries: int
    tried: int
    gain: Gain | None = None
    why: str = ""
    judged: bool = True
    parts: tuple[str, ...] = ()
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The choice in a few words: ``cross(depth=20, interpolate=0.4)``."""
        return called(self.scorer, self.depth, self.interpolate)

    def with_origin(self, origin: Mapping[str, Any]) -> Self:
        """Return the fit with where it was made."""
        return replace(self, origin=dict(origin))

    @classmethod
    def _parsed(cls, values: dict[str, Any]) -> dict[str, Any]:
        parts, gain = tuple(values.get("parts", ())), values.get("gain")
        whole_number(values["depth"], "depth", 0)
        if not (isinstance(values["scorer"], str) and isinstance(values.get("origin", {}), dict)):
            raise ConfigError("scorer and origin: expected a name and a mapping")
        if not all(isinstance(part, str) for part in parts):
            raise ConfigError(f"parts: {parts!r}; expected names")
        if finite_number(share := values["interpolate"], "interpolate", 0) > 1:
            raise ConfigError(f"interpolate: {share!r}; expected a share from 0 to 1")
        return {**values, "parts": parts, "gain": None if gain is None else Gain(*gain)}


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
    (``fusion.choice``), and kept only if its mean is more than one standard error above that of
    the first stage, and the held-out mean above it; otherwise the depth is 0. Give the queries of a
    dev or train split.

    Raises ``ConfigError`` for an unknown measure and ``DataError`` if no query is judged.
    """
    measure = parse_measure(measure)
    judged = {query: grades for query, grades in qrels.items() if grades}
    if not any(query in first for query in judged):
        raise DataError("fit_rerank: no query of the run has judgements; are the ids the same?")
    if depth is None:
        depth = max((len(scored[query]) for query in judged if query in scored), default=0)
    settings = settings_up_to(whole_number(depth, "depth", 1), steps=steps)
    search = RerankSearch(first, scored, judged, measure)
    values = np.array([search.values(*setting) for setting in settings])
    depths = sorted({depth for depth, _ in settings[1:]})
    points = np.array([(DEPTH_STEP * depths.index(d), share) for d, share in settings[1:]])
    smoothing = kernel(points)

    def choose(values: Array) -> int:
        place = 1 + bagged(values[1:], points, smoothing)
        return place if supported(values[place] - values[0]) else 0

    held = held_out(values, choose)
    place = choose(values)
    if held is None or held.mean() <= values[0].mean():
        place = 0
    means = values.mean(axis=1).tolist()
    fit = RerankFit(
        depth=settings[place][0],
        interpolate=settings[place][1],
        scorer=name or scored.name,
        candidates=first.name,
        measure=str(measure),
        value=means[place],
        held_out=None if held is None else float(held.mean()),
        first=means[0],
        full=means[settings.index((depth, 0.0))],
        queries=len(judged),
        tried=len(settings),
        gain=gain_over(held, values[0]),
    )
    return replace(fit, why=_why(fit))


def supported(differences: Array) -> bool:
    """Return whether the mean difference is more than one standard error above 0."""
    count = len(differences)
    if count < 2:
        return False
    mean, error = differences.mean(), differences.std(ddof=1) / np.sqrt(count)
    return bool(mean > 0 and mean > error)


def unjudged_rerank(name: str, candidates: str, measure: Measure, reason: str) -> RerankFit:
    """Return depth 0, the first stage as it is, which is taken without judgements."""
    return RerankFit(
        depth=0,
        interpolate=0.0,
        scorer=name,
        candidates=candidates,
        measure=str(measure),
        value=None,
        held_out=None,
        first=None,
        full=None,
        queries=0,
        tried=0,
        why=f"kept the first stage as it is, without {name}: not fitted on judgements ({reason})",
        judged=False,
    )


def _why(fit: RerankFit) -> str:
    """Return in a sentence what was chosen and how it compares."""
    queries = plural(fit.queries, "judged query")
    kept = f"chose {fit.shown}" if fit.depth else f"kept the first stage as it is, no {fit.scorer},"
    facts = [f"the first stage {fit.first:.4f}", f"all by {fit.scorer} {fit.full:.4f}"]
    if fit.held_out is not None:
        facts.insert(0, f"held out {fit.held_out:.4f}")
    return f"{kept} on {queries}: {fit.measure} {fit.value:.4f} ({', '.join(facts)})"
