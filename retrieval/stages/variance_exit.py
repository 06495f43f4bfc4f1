"""How sure a Gaussian encoder is of a query: a confidence, and the exit of the surest."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import finite_number
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.retriever import Retriever, retriever_of
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.stages.adaptive_depth import LEAST, WIDTH, Confidence, SignalKind

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
