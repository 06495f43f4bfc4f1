"""Early exit: queries skip the reranker whose ranking is certain, or whose encoder is of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import finite_number, is_number
from sluice.retrieval.evaluation.fitted_file import damage_named, number, read_fitted, write_fitted
from sluice.retrieval.evaluation.measures import parse_measure
from sluice.retrieval.evaluation.scores import Qrels, evaluate
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.retriever import Retriever, retriever_of
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.stages.adaptive_depth import (
    KINDS,
    LEAST,
    WIDTH,
    Confidence,
    Dividing,
    Kind,
    SignalKind,
)

VARIANCE: Final = "variance"
OTHERS: Final = {"exit": "margin", "abstain": "energy"}  # the usual kind of confidence


@dataclass(frozen=True, slots=True)
class Certainty:
    """The confidence of ``certainty``: of the query, whatever the scores of its ranking."""

    bounded: ClassVar[bool] = False
    width: ClassVar[int] = 0  # scores that are looked at

    kind: Literal["variance"] = VARIANCE


def signal(kind: SignalKind, width: int, temperature: float) -> Confidence | Certainty:
    """Return what a kind means; ``ConfigError`` for settings that it does not read."""
    if kind != "variance":
        return Confidence(kind, width, temperature)
    if (width, temperature) != (WIDTH, 1.0):
        raise ConfigError(
            f"width {width}, temperature {temperature}: a variance is the query's and reads no "
            "scores; leave both out"
        )
    return Certainty()


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


def certainty(queries: Queries, first: Stage, where: str = "exit") -> dict[str, float]:
    """Return minus the mean log variance of each query; of blank ones the least number.

    ``ConfigError`` as for ``unsure_retriever``.
    """
    encoder = unsure_retriever(first, where).state.encoder
    uncertainty = hooks_of(encoder).uncertainty
    found = dict.fromkeys(queries, LEAST)
    with_text = [query for query, text in queries.items() if text.strip()]
    if with_text and uncertainty is not None:
        values = uncertainty(encoder.encode_queries([queries[query] for query in with_text]))
        found.update(zip(with_text, (-values).tolist(), strict=True))
    return found


def check_unsure(first: Stage, where: str) -> None:
    """Raise ``ConfigError`` where ``unsure_retriever`` would.

    Stages of other classes that find documents are checked in each search.
    """
    if all(isinstance(part, Retriever) for part in _sources(first)):
        unsure_retriever(first, where)


def unsure_retriever(first: Stage, where: str = "exit") -> Retriever:
    """Return the retriever in a stage whose encoder says how unsure it is of a query.

    ``ConfigError`` where none does, or where several of different encoders do; ``where`` is what
    asks, ``exit`` or ``abstain``.
    """
    found = {
        each.state.head.encoder_fingerprint: each
        for each in _sources(first)
        if isinstance(each, Retriever) and hooks_of(each.state.encoder).uncertainty is not None
    }
    if not found:
        raise ConfigError(
            f"{where}: {VARIANCE}: no encoder of {first.name} has a variance of the query; search "
            f"by a retriever of {{type: gaussian}}, or take another kind, such as {OTHERS[where]}"
        )
    if len(found) > 1:
        names = ", ".join(each.name for each in found.values())
        raise ConfigError(
            f"{where}: {VARIANCE}: {names} have a variance of the query each; expected one such "
            f"encoder in {first.name}"
        )
    return next(iter(found.values()))


def _sources(stage: Stage) -> Iterator[Stage]:
    """Yield the retrievers in a stage, and its other parts that have none."""
    base = retriever_of(stage)
    if base is not None:
        yield base
    elif not stage.inner and not stage.needs_candidates:
        yield stage
    for part in stage.inner if base is None else ():
        yield from _sources(part)


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
        return self._predictor.of(ranking)


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
    found = read_fitted(value, FILE)
    with damage_named(value, "exit"):
        if found["kind"] == VARIANCE:
            return VarianceExit(number(found["threshold"]))
        tempered = found.get("temperature", 1.0)  # earlier files have none
        return ConfidenceExit(
            number(found["threshold"]), found["kind"], found["width"], number(tempered)
        )


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
    see ``variance_exit.certainty``; width and temperature are not for it.

    ``bound`` chooses what stays within epsilon:

    - ``dev``: the mean loss R of these n queries.
    - ``expected``: (n R + 1) / (n + 1), and with it the expected loss of a new query of the same
      kind (Angelopoulos et al. 2024, Conformal Risk Control, Theorem 1; losses are at most 1).
    - ``hoeffding``: R + sqrt(ln(1 / delta) / 2n), and with it, but for a chance of ``delta``, the
      mean loss of all such queries (Bates et al. 2021, Distribution-Free, Risk-Controlling
      Prediction Sets).

    ``DataError`` if no query has judgements.
    """
    rule = _never(kind, width, temperature, certain)
    _check_bounds(epsilon, bound, delta)
    values = [_values(run, qrels, measure) for run in (before, after)]
    queries = list(values[0])
    empty = Ranking([], [])
    if isinstance(rule, ConfidenceExit):
        confidence = np.array([rule.confidence(before.get(query, empty)) for query in queries])
    else:
        confidence = np.array([(certain or {}).get(query, LEAST) for query in queries])
    one, full = (np.array([found[query] for query in queries]) for found in values)
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


def _never(
    kind: SignalKind, width: int, temperature: float, certain: Mapping[str, float] | None
) -> ConfidenceExit | VarianceExit:
    """Return the rule of a kind by which no query exits."""
    if kind not in (*KINDS, VARIANCE):
        known = (*KINDS, VARIANCE)
        raise ConfigError(f"kind: {kind!r}; expected {', '.join(known)}{suggest(str(kind), known)}")
    if (certain is not None) != (kind == VARIANCE):
        raise ConfigError(
            f"kind: {kind}: expected certain=, the number of each query, with kind='variance' and "
            "with no other"
        )
    rule = signal(kind, width, temperature)
    if isinstance(rule, Certainty):
        return VarianceExit(sys.float_info.max)
    return ConfidenceExit(
        NEVER if rule.bounded else sys.float_info.max, rule.kind, width, temperature
    )


def _upper(
    risks: NDArray[np.float64], count: int, bound: Bound, delta: float
) -> NDArray[np.float64]:
    if bound == "expected":
        return (count * risks + 1) / (count + 1)
    if bound == "hoeffding":
        return risks + math.sqrt(math.log(1 / delta) / (2 * count))
    return risks


def _values(run: Run, qrels: Qrels, measure: str) -> Mapping[str, float]:
    values: Mapping[str, float] = evaluate(run, qrels, [measure]).per_query[measure]
    return values


def _check_bounds(epsilon: Any, bound: Any, delta: Any) -> None:
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        finite_number(value, name, 0, 1)
    if bound not in get_args(Bound):
        near = suggest(str(bound), get_args(Bound))
        raise ConfigError(f"bound: {bound!r}; expected dev, expected or hoeffding{near}")
    if bound == "hoeffding" and delta == 0:
        raise ConfigError("delta: 0; no finite number of queries makes a bound certain")
