"""Fits the probability that a document is relevant by a reranker's score, on judged queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import finite_number, plural
from sluice.retrieval.evaluation.calibration_error import (
    error_of,
    platt,
    probabilities,
    reliability,
)
from sluice.retrieval.evaluation.measures import Measure
from sluice.retrieval.pipelines.fitting.choice import FOLDS, Gain, QueryFit, Sample, Unfitted
from sluice.retrieval.pipelines.rerank import Rerank
from sluice.retrieval.pipelines.stage import Stage, Texts

Array = NDArray[np.float64]


class UnfittedProbability(Unfitted):
    """A reranker whose scores are to be probabilities, which are fitted to its own scores."""

    needs_candidates = True
    queries = None
    most_queries = 300  # whose pairs are scored
    measure = "P@1"  # only the grade that it takes for relevant is read
    gives_probabilities = True

    def __init__(self, rerank: Rerank) -> None:
        rerank.with_probability(1.0, 0.0)  # refuses settings whose scores can be none
        self.rerank, self.name = rerank, rerank.name

    def attached(self, documents: Texts) -> Stage:
        """Return the open reranker with a store, unless it has its own."""
        attached = self.rerank.attached(documents)
        return UnfittedProbability(attached) if isinstance(attached, Rerank) else attached

    def check_first(self, first: Stage) -> None:
        """Let the reranker refuse a stage before it."""
        self.rerank.check_first(first)

    def fit(self, sample: Sample, measure: Measure, first: Stage | None) -> ProbabilityFit:
        """Return the probabilities that the judgements of the candidates support."""
        if first is None:
            raise ConfigError(f"{self.name}: a reranker needs candidates; write first >> {self}")
        head = sample.run(first).top(self.rerank.depth)
        scored = self.rerank.rank(sample.queries, head, self.rerank.depth)
        by_query = [
            (
                ranking.scores.astype(np.float64),
                np.array([grades.get(doc, 0) >= measure.level for doc in ranking.doc_ids], float),
            )
            for query, grades in sample.qrels.items()
            if len(ranking := scored[query])
        ]
        return fit_probability(by_query, self.name)

    def unjudged(self, measure: Measure, reason: str, first: Stage | None) -> QueryFit:
        """Raise ``ConfigError``: a probability that nothing supports is none."""
        raise ConfigError(
            f"{self.name}: no probability can be {reason}; give the dataset a dev split, or "
            "probability='p.json', which another experiment wrote in its fitted/"
        )

    def closed(self, fit: QueryFit) -> Stage | None:
        """Return the reranker whose scores are the probabilities of a fit."""
        if not isinstance(fit, ProbabilityFit):
            return None
        return self.rerank.with_probability(fit.scale, fit.bias)


@dataclass(frozen=True, slots=True)
class ProbabilityFit(QueryFit):
    """The probability ``sigmoid(scale * score + bias)`` of a scorer's scores (Platt 1999).

    ``value`` is the expected calibration error on the ``pairs`` of the judged ``queries``, of which
    ``relevant`` are; ``held_out`` that of each fifth of the queries by what the others support.
    """

    KIND: ClassVar = "probability"
    TITLE: ClassVar = "probability"
    MAKER: ClassVar = "`sluice run` of a pipeline with probability=True"

    scale: float
    bias: float
    scorer: str
    value: float | None = None
    held_out: float | None = None
    queries: int = 0
    pairs: int = 0
    relevant: int = 0
    measure: str = "calibration error"
    gain: Gain | None = None
    why: str = ""
    judged: bool = True
    parts: tuple[str, ...] = ()
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The formula."""
        return f"{self.scorer}: sigmoid({self.scale:.4g} * score {self.bias:+.4g})"

    @classmethod
    def _parsed(cls, values: dict[str, Any]) -> dict[str, Any]:
        finite_number(values["scale"], "scale", 0)
        finite_number(values["bias"], "bias")
        return QueryFit._parsed(values)


def fit_probability(by_query: list[tuple[Array, Array]], name: str = "") -> ProbabilityFit:
    """Fit the chance of relevance to (scores, 1 or 0) of each query's documents, as Platt does.

    The targets are his (1999, section 2.2): (relevant + 1) / (relevant + 2) and
    1 / (others + 2), so that nothing is certain. Scores that rise as relevance falls get one chance
    everywhere. ``DataError`` where all documents are relevant, or none is.
    """
    scores, hits = (np.concatenate(part) for part in zip(*by_query, strict=True))
    pairs, relevant = len(hits), int(hits.sum())
    if relevant in (0, pairs):
        raise DataError(
            f"{name}: {relevant:,} of the {plural(pairs, 'document')} that it scored for "
            f"{plural(len(by_query), 'dev query')} are relevant; a probability needs both kinds"
        )
    scale, bias = _chance(scores, hits)
    held: list[Array] = []
    folds = min(FOLDS, len(by_query))
    for fold in range(folds):
        own = np.concatenate(
            [np.full(len(each), n % folds == fold) for n, (each, _) in enumerate(by_query)]
        )
        if own.all() or 0 < hits[~own].sum() < (~own).sum():
            held.append(np.stack([probabilities(scores[own], *_chance(scores[~own], hits[~own])),
                                  hits[own]]))  # fmt: skip
    fit = ProbabilityFit(
        scale, bias, name,
        value=error_of(reliability(probabilities(scores, scale, bias), hits)),
        held_out=error_of(reliability(*np.concatenate(held, axis=1))) if held else None,
        queries=len(by_query), pairs=pairs, relevant=relevant,
    )  # fmt: skip
    return fit.explained(f"fitted {fit.shown}", {"relevant": relevant / pairs})


def _chance(scores: Array, hits: Array) -> tuple[float, float]:
    """Return the scale, 0 at least, and the bias of the probability of relevance."""
    relevant = hits.sum()
    others = len(hits) - relevant
    targets = np.where(hits > 0, (relevant + 1) / (relevant + 2), 1 / (others + 2))
    scale, bias = platt(scores, targets)
    share = targets.mean()
    return (scale, bias) if scale > 0 else (0.0, float(np.log(share / (1 - share))))
