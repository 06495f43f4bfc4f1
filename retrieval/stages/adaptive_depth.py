"""Each query's reranking depth, by a share of the scores or learnt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import is_number, whole_number
from sluice.retrieval.evaluation.fitted_file import FittedFile, number
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.pipelines.rerank import DepthRule
from sluice.retrieval.runs.run import Ranking, Run

Normalise = Literal["shift", "sum"]
SLACK = 1e-9  # of a sum of shares, for its rounding


@dataclass(frozen=True, slots=True)
class CumulativeScore:
    """The smallest depth at which the scores add up to a ``share`` of their sum.

    Scores are taken less the lowest of the ranking, so that neither sign nor zero matters: scores
    that are all the same count the same, and a share of 1 keeps every candidate. What the rule
    sees is the full list before the reranker: cut it (``% 100``), or a long tail of small scores
    makes every list deep.
    """

    share: float

    def __post_init__(self) -> None:
        if not is_number(self.share) or not 0 < self.share <= 1:
            raise ConfigError(f"cut_off: {self.share!r}; expected a share above 0 and up to 1")

    def depth(self, ranking: Ranking) -> int:
        """Return the depth, 0 for an empty ranking."""
        if self.share == 1 or len(ranking) == 0:
            return len(ranking)
        values = ranking.scores.astype(np.float64)
        reached = (values - values.min()).cumsum()
        if not reached[-1] > 0:
            reached = np.arange(1.0, len(values) + 1)
        needed = (self.share - SLACK) * reached[-1]
        return min(len(values), int(reached.searchsorted(needed)) + 1)


@dataclass(frozen=True, slots=True)
class PredictedDepth(FittedFile):
    """The rank at which the first relevant document is expected, and ``extra``.

    A line through the shares of the first scores, rounded, clipped to ``least`` and ``most``: an
    ordinal ridge regression (``fit_cut_off``). An empty ranking has depth 0.
    """

    KIND: ClassVar = "cut_off"
    TITLE: ClassVar = "cut-off"

    weights: tuple[float, ...]
    intercept: float
    least: int
    most: int
    extra: int = 1
    normalise: Normalise = "shift"
    _line: NDArray[np.float64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_line", np.asarray(self.weights, np.float64))

    def depth(self, ranking: Ranking) -> int:
        """Return the depth that is predicted for a ranking."""
        if len(ranking) == 0:
            return 0
        shares = _shares(ranking.scores[: len(self._line)], self.normalise)
        rank = float(shares @ self._line[: len(shares)]) + self.intercept
        return round(min(max(rank, self.least), self.most)) + self.extra

    def predicted(self, shares: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the predicted ranks for shares ``[queries, n]``, without the extra."""
        values = np.rint(shares @ self._line + self.intercept)
        clipped: NDArray[np.int64] = np.clip(values, self.least, self.most).astype(np.int64)
        return clipped

    @classmethod
    def _parsed(cls, values: dict[str, Any]) -> dict[str, Any]:
        weights = tuple(float(number(weight)) for weight in values["weights"])
        least, most, extra = (
            whole_number(values[key], key, 0) for key in ("least", "most", "extra")
        )
        if not weights or values["normalise"] not in get_args(Normalise):
            raise ValueError("no weights, or an unknown normalisation")
        if least > most:
            raise ValueError(f"depths from {least} to {most}")
        return {
            "weights": weights, "intercept": float(number(values["intercept"])),
            "least": least, "most": most, "extra": extra, "normalise": values["normalise"],
        }  # fmt: skip


def cut_off(value: float | str) -> DepthRule:
    """Return the rule of ``cut_off=0.9`` (a share of the scores) or ``cut_off='file.json'``."""
    return PredictedDepth.load(value) if isinstance(value, str) else CumulativeScore(value)


def fit_cut_off(
    run: Run,
    qrels: Qrels,
    *,
    n: Annotated[int, "Scores looked at, and the largest depth."] = 25,
    alpha: Annotated[float, "Strength of the ridge penalty."] = 1.0,
    extra: Annotated[int, "Documents added to the predicted depth."] = 1,
    success: Annotated[float | None, "SHARE", "Choose --extra so that this share succeeds."] = None,
    normalise: Normalise = "shift",
    level: int = 1,
) -> PredictedDepth:
    """Learn each query's depth from a run of judged queries, by ordinal ridge regression.

    Features are the first ``n`` scores as shares of their sum, zeros where there are fewer; the
    target is the rank of the first relevant hit, ``n`` where the first n have none. With both
    centred, w = (X'X + alpha I)^-1 X'y; predictions are rounded and clipped to the range of the
    targets (as mord's OrdinalRidge), then ``extra`` is added. Queries without a relevant document
    or without hits are left out; ``DataError`` if none is left.

    ``normalise`` is ``shift`` (scores less the n-th first, for any range) or ``sum`` (as they are:
    none may be negative; cosines then all look alike, and ``alpha`` must be far smaller).
    ``success`` replaces ``extra`` by the smallest with which that share of the queries that have a
    relevant hit among the first n has it inside the depth. A grade of ``level`` or more is
    relevant.
    """
    n = whole_number(n, "n", 1)
    extra = whole_number(extra, "extra", 0)
    level = whole_number(level, "level", 1)
    if not is_number(alpha) or alpha <= 0:
        raise ConfigError(f"alpha: {alpha!r}; expected a number above 0")
    if success is not None and not (is_number(success) and 0 < success <= 1):
        raise ConfigError(f"success: {success!r}; expected a share above 0 and up to 1")
    if normalise not in get_args(Normalise):
        near = suggest(str(normalise), get_args(Normalise))
        raise ConfigError(f"normalise: {normalise!r}; expected shift or sum{near}")
    rows, ranks = _table(run, qrels, n, normalise, level)
    targets = np.minimum(ranks, n)
    weights, intercept = ridge(rows, targets, float(alpha))
    least, most = int(targets.min()), int(targets.max())
    line = PredictedDepth(tuple(weights.tolist()), intercept, least, most, extra, normalise)
    if success is None:
        return line
    reached = ranks <= n
    short = np.sort((ranks - line.predicted(rows))[reached])
    place = math.ceil(success * len(short) - SLACK) - 1
    more = max(0, int(short[place])) if len(short) else extra
    return PredictedDepth(line.weights, intercept, least, most, more, normalise)


def ridge(
    features: ArrayLike, targets: ArrayLike, alpha: float
) -> tuple[NDArray[np.float64], float]:
    """Return weights ``[n]`` and intercept of ridge regression on features ``[rows, n]``.

    The closed form on centred data; the intercept is not penalised.
    """
    table, values = np.asarray(features, np.float64), np.asarray(targets, np.float64)
    centre, mean = table.mean(0), values.mean()
    centred = table - centre
    penalised = centred.T @ centred + alpha * np.eye(table.shape[1])
    weights = np.linalg.solve(penalised, centred.T @ (values - mean))
    return weights, float(mean - centre @ weights)


class DepthReport(NamedTuple):
    """Mean depth, and ``success``: the share of queries with a relevant hit within the depth."""

    mean_depth: float
    success: float
    queries: int


def depth_report(rule: DepthRule | int, run: Run, qrels: Qrels, *, level: int = 1) -> DepthReport:
    """Return mean depth and success of a rule, or of one depth for all, on judged queries.

    Queries without a relevant document, of grade ``level`` or more, are left out; those the run
    lacks have depth 0.
    """
    depths, hits = [], []
    empty = Ranking([], [])
    for query, grades in qrels.items():
        if any(grade >= level for grade in grades.values()):
            ranking = run.get(query, empty)
            depth = rule if isinstance(rule, int) else rule.depth(ranking)
            depths.append(min(depth, len(ranking)))
            hits.append(_first_relevant(ranking, grades, level) <= depths[-1])
    if not depths:
        raise DataError("cut_off: the qrels name no relevant document; nothing can be measured")
    return DepthReport(float(np.mean(depths)), float(np.mean(hits)), len(depths))


def _table(
    run: Run, qrels: Qrels, n: int, normalise: Normalise, level: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return features and first relevant ranks (inf: none) of the queries that have them."""
    rows, ranks = [], []
    for query, grades in qrels.items():
        if query not in run or not any(grade >= level for grade in grades.values()):
            continue
        ranking = run[query][:n]
        if len(ranking) == 0:
            continue
        if normalise == "sum" and ranking.scores.min() < 0:
            raise DataError(
                f"cut_off: query {query!r} has a score of {ranking.scores.min():.4g}, and shares "
                "of a sum have no meaning below 0; use normalise='shift'"
            )
        rows.append(_features(ranking.scores, n, normalise))
        ranks.append(_first_relevant(ranking, grades, level))
    if not rows:
        raise DataError("cut_off: no query of the run has hits and a relevant document")
    return np.stack(rows), np.asarray(ranks)


def _first_relevant(ranking: Ranking, grades: Mapping[str, int], level: int) -> float:
    places = (rank for rank, doc in enumerate(ranking.doc_ids, 1) if grades.get(doc, 0) >= level)
    return next(places, math.inf)


def _features(scores: NDArray[np.float32], n: int, normalise: Normalise) -> NDArray[np.float64]:
    shares = np.zeros(n)
    head = scores[:n]
    shares[: len(head)] = _shares(head, normalise)
    return shares


def _shares(scores: NDArray[np.float32], normalise: Normalise) -> NDArray[np.float64]:
    """Return the parts of the scores' sum, which is 1; equal parts where the sum is 0."""
    values = scores.astype(np.float64)
    values = values - values.min() if normalise == "shift" else np.maximum(values, 0.0)
    total = values.sum()
    return values / total if total > 0 else np.full(len(values), 1 / len(values))
