"""No answer: queries whose ranking looks as if the collection had none get no hits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import finite_number
from sluice.retrieval.evaluation.fitted_file import damage_named, write_fitted
from sluice.retrieval.pipelines.stage import Around, Stage
from sluice.retrieval.pipelines.tracing import note
from sluice.retrieval.runs.queries import DEPTH, Queries
from sluice.retrieval.runs.run import Run
from sluice.retrieval.stages.confidence import (
    EMPTY,
    KINDS,
    TEMPERED,
    WIDTH,
    Certainty,
    Confidence,
    Dividing,
    SignalKind,
    auroc,
    certainty,
    check_unsure,
    confidences,
    read_threshold,
    signal,
)

FILE = "no_answer"
NO_ANSWER = "no answer"  # a fact of a search: query to the confidence that was too low


class Abstain(Around):
    """``stage`` without hits for queries whose confidence is below ``threshold``."""

    lexical = False

    def __init__(self, stage: Stage, threshold: float, confidence: Confidence | Certainty) -> None:
        self.threshold = finite_number(threshold, "threshold")
        likely = confidence.kind == "top" and stage.gives_probabilities
        if (confidence.bounded or likely) and not 0 <= threshold <= 1:
            raise ConfigError(
                f"abstain: threshold {threshold!r} refuses every query or none: {confidence.kind} "
                "lies in 0 to 1; expected a threshold between, or another kind"
            )
        self.confidence = confidence
        options = {"threshold": self.threshold, **asdict(confidence)}
        super().__init__(stage, "abstain", options=options)

    @property
    def gives_probabilities(self) -> bool:
        """Whether the stage's scores, which it keeps, are such."""
        return self.stage.gives_probabilities

    def _take(self, stage: Stage) -> None:
        super()._take(stage)
        if isinstance(self.confidence, Certainty):
            check_unsure(stage, "abstain")

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Run the stage, as deep as the confidence looks at least, and keep what is sure enough."""
        depth = DEPTH if k is None else k
        run = self.stage.rank(queries, given, max(depth, self.confidence.width))
        rule = self.confidence
        known = certainty(queries, self.stage, "abstain") if isinstance(rule, Certainty) else None
        values = dict(zip(queries, confidences(rule, queries, run, known).tolist(), strict=True))
        note({"confidence": values})
        note({NO_ANSWER: {q: value for q, value in values.items() if value < self.threshold}})
        return Run(
            {
                query: run.get(query, EMPTY)[:depth] if value >= self.threshold else EMPTY
                for query, value in values.items()
            },
            name=self.name,
        )


@dataclass(frozen=True, slots=True)
class FittedAbstention:
    """A threshold chosen on judged queries, and what it does to them.

    ``refused`` is the share of the ``answerable`` queries that get no hits, ``caught`` that of the
    ``unanswerable`` ones. ``auroc`` has for each kind of confidence the chance that an answerable
    query's is above an unanswerable one's.
    """

    threshold: float
    confidence: Confidence | Certainty
    refused: float
    caught: float
    answerable: int
    unanswerable: int
    auroc: Mapping[SignalKind, float]

    def save(self, path: str | Path) -> None:
        """Write a JSON file that ``abstain(stage, fitted='file.json')`` reads."""
        facts = asdict(self)
        rule = {"threshold": facts.pop("threshold"), **facts.pop("confidence")}
        write_fitted(path, FILE, {**rule, "fitted": facts})


def fit_abstention(
    answerable: Run,
    unanswerable: Run,
    *,
    kind: SignalKind = "energy",
    width: int = WIDTH,
    temperature: Dividing = 1.0,
    refused: Annotated[float, "SHARE", "Answerable queries that may be refused, at most."] = 0.05,
    certain: tuple[Mapping[str, float], Mapping[str, float]] | None = None,
) -> FittedAbstention:
    """Choose the highest threshold that refuses at most a share ``refused`` of answerable queries.

    Both runs are of the same stage: of queries with relevant documents, and of queries without any.
    ``kind="variance"`` is of the queries and not of rankings: ``certain`` has their numbers, see
    ``confidence.certainty``. ``DataError`` where one of the runs has no queries.
    """
    finite_number(refused, "refused", 0, 1)
    rule = signal(kind, width, temperature)
    for name, run in (("answerable", answerable), ("unanswerable", unanswerable)):
        if not run:
            raise DataError(f"{name}: no queries; a threshold needs queries with and without one")
    pair = answerable, unanswerable
    numbers = zip(pair, certain or (None, None), strict=True)
    known, unknown = (confidences(rule, run, run, own) for run, own in numbers)
    others = [Confidence(each, width, temperature if each in TEMPERED else 1.0) for each in KINDS]
    aurocs: dict[SignalKind, float] = {
        each.kind: auroc(*(confidences(each, run, run) for run in pair)) for each in others
    }
    # as many of the lowest may be refused: those strictly below the next one
    shares = np.arange(len(known)) / len(known)  # not refused * n, which is 28.99... of .29 and 100
    place = int(np.searchsorted(shares, refused, side="right")) - 1
    threshold = float(np.sort(known)[place])
    return FittedAbstention(
        threshold,
        rule,
        refused=float((known < threshold).mean()),
        caught=float((unknown < threshold).mean()),
        answerable=len(known),
        unanswerable=len(unknown),
        auroc={**aurocs, kind: auroc(known, unknown)},
    )


def abstain(
    stage: Stage,
    /,
    *,
    fitted: Annotated[str | None, "A file that `sluice fit no-answer` wrote."] = None,
    threshold: Annotated[float | None, "The least confidence of a query that gets hits."] = None,
    kind: Annotated[
        SignalKind | None,
        "What confidence is: energy, top, margin, softmax or deviation of the scores, or the "
        "variance that a Gaussian encoder gives the query.",
    ] = None,
    width: Annotated[int | None, "The first scores that confidence looks at, 25."] = None,
    temperature: Annotated[
        float | None, "What the scores of softmax and energy are divided by, 1."
    ] = None,
) -> Abstain:
    """Return a stage that finds nothing where it is not sure: ``abstain(dense, fitted='f.json')``.

    ``fitted`` is a file of `sluice fit no-answer`. Or ``threshold`` is set, with the ``kind`` of
    confidence (energy), its ``width`` and ``temperature``, see ``Confidence``; ``variance``, of the
    query, has neither, see ``confidence.certainty``. Of a reranker with ``probability`` it is that
    of the first document (top): ``threshold=0.5`` answers where it is more likely right than not.
    """
    if not isinstance(stage, Stage):
        raise ConfigError(
            f"abstain: {type(stage).__name__}; expected a retriever or pipeline, such as "
            "abstain(bm25 >> reranker, threshold=0.5)"
        )
    options = {"threshold": threshold, "kind": kind, "width": width, "temperature": temperature}
    named = [name for name, value in options.items() if value is not None]
    if (fitted is None) == (threshold is None) or (fitted is not None and named):
        raise ConfigError(
            f"abstain: {', '.join(named) or 'nothing'} and fitted={fitted!r}; expected either the "
            "file of `sluice fit no-answer`, or a threshold with its kind"
        )
    if fitted is None:
        own = signal(
            ("top" if stage.gives_probabilities else "energy") if kind is None else kind,
            WIDTH if width is None else width,
            1.0 if temperature is None else temperature,
        )
        return Abstain(stage, finite_number(threshold, "threshold"), own)
    threshold, rule = read_threshold(fitted, FILE, "threshold")
    if isinstance(rule, Certainty):
        return Abstain(stage, threshold, rule)
    with damage_named(fitted, "threshold"):
        return Abstain(stage, threshold, rule)
