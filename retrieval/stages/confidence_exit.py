"""Exits: queries that are already certain, by their ranking or by themselves, skip the reranker."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import finite_number, is_number
from sluice.retrieval.evaluation.fitted_file import damage_named, write_fitted
from sluice.retrieval.evaluation.measures import parse_measure
from sluice.retrieval.evaluation.scores import Qrels, evaluate
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.stages.confidence import (
    VARIANCE,
    WIDTH,
    Certainty,
    Confidence,
    Dividing,
    Kind,
    SignalKind,
    certainty,
    check_unsure,
    confidences,
    read_threshold,
    signal,
)

Bound = Literal["dev", "expected", "hoeffding"]
FILE = "exit"
NEVER = 2.0  # a threshold that no confidence from 0 to 1 reaches


@dataclass(frozen=True, slots=True)
class ConfidenceExit:
    """Skip the reranker for a query whose confidence is ``threshold`` or more.

    ``Confidence`` says what ``kind``, ``width`` and ``temperature`` mean. Margin and softmax lie in
    0 to 1; a ranking of at most one document is sure by them.
    """

    threshold: float
    kind: Kind = "margin"
    width: int = WIDTH
    temperature: float = 1.0

    def __post_init__(self) -> None:
        value = self.threshold
        try:
            bounded = self._predictor.bounded
        except ConfigError as error:
            raise ConfigError(f"exit: {error}") from None
        if bounded and (not is_number(value) or not 0 <= value <= 2):
            raise ConfigError(
                f"exit: {value!r}; expected a confidence from 0 (every query) to 1, or 2 for none"
            )
        finite_number(value, "exit")

    @property
    def _predictor(self) -> Confidence:
        return Confidence(self.kind, self.width, self.temperature)

    def depth(self, ranking: Ranking) -> int:
        """Return 0 for a query that is sure, else every candidate."""
        return 0 if self.confidence(ranking) >= self.threshold else len(ranking)

    def confidence(self, ranking: Ranking) -> float:
        """Return how sure the order of a ranking's top is."""
        return self._predictor.measure(ranking)


@dataclass(frozen=True, slots=True)
class VarianceExit:
    """Skip the reranker for a query whose certainty is ``threshold`` or more.

    A query's certainty is minus the mean logarithm of the variances that the encoder of a retriever
    before the reranker gives it (``EncoderBase.uncertainty``): it is known of the query alone,
    whatever the ranking. Queries are encoded once more for it. (Zamani and Bendersky 2023,
    Multivariate Representation Learning for Information Retrieval, section on query performance.)
    """

    threshold: float
    kind: Literal["variance"] = VARIANCE

    def __post_init__(self) -> None:
        finite_number(self.threshold, "exit")

    def check(self, first: Stage) -> None:
        """Raise ``ConfigError`` where no retriever in ``first``, or more than one, is unsure."""
        check_unsure(first, "exit")

    def sure(self, queries: Queries, first: Stage) -> Collection[str]:
        """Return the queries that skip the reranker after ``first``."""
        certain = certainty(queries, first)
        return {query for query, value in certain.items() if value >= self.threshold}


@dataclass(frozen=True, slots=True)
class FittedExit:
    """An exit calibrated on judged queries, and what it did to them.

    ``exited`` is the share of ``queries`` that skip the reranker; ``loss`` the mean of what they
    lose by it, gains not counted against it; ``value`` the measure with the exit, ``full`` without.
    """

    rule: ConfidenceExit | VarianceExit
    exited: float
    loss: float
    value: float
    full: float
    queries: int
    measure: str
    epsilon: float
    bound: Bound = "dev"

    def save(self, path: str | Path) -> None:
        """Write a JSON file that ``exit='file.json'`` reads."""
        facts = asdict(self)
        write_fitted(path, FILE, {**facts.pop("rule"), "fitted": facts})


def exit_rule(value: float | str) -> ConfidenceExit | VarianceExit:
    """Return the rule of ``exit=0.4`` (a margin) or ``exit='file.json'`` (what was fitted)."""
    if not isinstance(value, str):
        return ConfidenceExit(value)
    threshold, confidence = read_threshold(value, FILE, "exit")
    with damage_named(value, "exit"):
        return _exit(threshold, confidence)


def _exit(threshold: float, confidence: Confidence | Certainty) -> ConfidenceExit | VarianceExit:
    if isinstance(confidence, Certainty):
        return VarianceExit(threshold)
    return ConfidenceExit(threshold, confidence.kind, confidence.width, confidence.temperature)


def fit_exit(
    before: Run,
    after: Run,
    qrels: Qrels,
    *,
    measure: str = "nDCG@10",
    epsilon: Annotated[float, "Loss of the measure that is allowed."] = 0.01,
    kind: SignalKind = "margin",
    width: int = WIDTH,
    temperature: Dividing = 1.0,
    bound: Annotated[
        Bound, "Keep --epsilon on dev, or as a bound on new queries: expected or hoeffding."
    ] = "dev",
    delta: float = 0.1,
    certain: Mapping[str, float] | None = None,
) -> FittedExit:
    """Find the exit that saves most queries while the loss stays within ``epsilon``.

    ``before`` is the run that the reranker gets, ``after`` what it makes of it. A query's loss is
    how much lower ``measure`` is before than after, 0 where it is higher: so the loss only grows as
    the threshold falls, and gains of one query never pay for another. ``epsilon=0`` asks for the
    full cascade, which is then what runs. Queries of equal confidence exit together.

    ``kind="variance"`` is of the queries and not of rankings: ``certain`` has the number of each,
    see ``confidence.certainty``; width and temperature are not for it.

    ``bound`` chooses what stays within epsilon:

    - ``dev``: the mean loss R of these n queries.
    - ``expected``: (n R + 1) / (n + 1), and with it the expected loss of a new query of the same
      kind (Angelopoulos et al. 2024, Conformal Risk Control, Theorem 1; losses are at most 1).
    - ``hoeffding``: R + sqrt(ln(1 / delta) / 2n), and with it, but for a chance of ``delta``, the
      mean loss of all such queries (Bates et al. 2021, Distribution-Free, Risk-Controlling
      Prediction Sets).

    ``DataError`` if no query has judgements.
    """
    sure = signal(kind, width, temperature)
    rule = _exit(NEVER if sure.bounded else sys.float_info.max, sure)
    _check_bounds(epsilon, bound, delta)
    values = [evaluate(run, qrels, [measure]).per_query[measure] for run in (before, after)]
    queries = list(values[0])
    confidence = confidences(sure, queries, before, certain)
    one, full = (np.array([own[query] for query in queries]) for own in values)
    losses = np.maximum(full - one, 0.0)
    order = np.argsort(-confidence, kind="stable")
    count = len(queries)
    risks = np.cumsum(losses[order]) / count  # of the surest 1, 2, ... queries
    ends = np.append(np.diff(confidence[order]) != 0, True)  # where no tie is cut
    allowed = np.flatnonzero(ends & (_upper(risks, count, bound, delta) <= epsilon))
    loss = 0.0
    if epsilon > 0 and len(allowed):
        last = allowed[-1]
        rule = replace(rule, threshold=float(confidence[order[last]]))
        loss = float(risks[last])
    out = confidence >= rule.threshold
    return FittedExit(
        rule,
        exited=float(out.mean()),
        loss=loss,
        value=float(np.where(out, one, full).mean()),
        full=float(full.mean()),
        queries=count,
        measure=str(parse_measure(measure)),
        epsilon=float(epsilon),
        bound=bound,
    )


def _upper(
    risks: NDArray[np.float64], count: int, bound: Bound, delta: float
) -> NDArray[np.float64]:
    if bound == "expected":
        return (count * risks + 1) / (count + 1)
    if bound == "hoeffding":
        return risks + math.sqrt(math.log(1 / delta) / (2 * count))
    return risks


def _check_bounds(epsilon: Any, bound: Any, delta: Any) -> None:
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        finite_number(value, name, 0, 1)
    if bound not in get_args(Bound):
        near = suggest(str(bound), get_args(Bound))
        raise ConfigError(f"bound: {bound!r}; expected dev, expected or hoeffding{near}")
    if bound == "hoeffding" and delta == 0:
        raise ConfigError("delta: 0; no finite number of queries makes a bound certain")
