"""The reliability curve of a run: how often its hits are relevant, by how likely its scores say."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import finite_number, plural, whole_number
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.runs.run import Run

Values = NDArray[np.float64]
BINS = 10
STEPS = 100  # of Newton's method, at most
STIFF = 1e-6  # a ridge, in the scores' own unit: classes that scores part would pull for ever


class Bin(NamedTuple):
    """Hits whose probability lies in [``low``, ``high``), the last one's end included."""

    low: float
    high: float
    hits: int
    predicted: float
    observed: float


class Calibration(NamedTuple):
    """``error`` is ``sum_b n_b |predicted_b - observed_b| / n`` (Guo et al. 2017, eq. 3).

    ``bins`` are those with hits; probabilities are ``sigmoid(scale * score + bias)`` of ``hits``.
    """

    error: float
    scale: float
    bias: float
    hits: int
    bins: tuple[Bin, ...]


def calibration(
    run: Run,
    qrels: Qrels,
    *,
    scale: Annotated[float | None, "The scale that bixse learnt, from the training's log."] = None,
    bias: Annotated[float | None, "The bias that bixse learnt."] = None,
    k: Annotated[int, Ge(1), "Look at the first N hits."] = 100,
    max_grade: Annotated[float, "The grade that is certainly relevant."] = 1.0,
    bins: Annotated[int, Ge(1), "Bins of equal width."] = BINS,
) -> Calibration:
    """Compare ``sigmoid(scale * score + bias)`` of the first ``k`` hits with their grades.

    Grades are divided by ``max_grade``, and at most 1; a hit without judgement has 0. ``scale`` and
    ``bias`` are those that training with the loss bixse logs; without both they are fitted to
    every second judged query (by maximum likelihood, Platt 1999) and the others are looked at.
    Raises ``ConfigError`` for one of the two alone, ``DataError`` without hits of judged queries.
    """
    if (scale is None) != (bias is None):
        raise ConfigError("calibration: scale and bias go together; give both or neither")
    k, bins = whole_number(k, "k", 1), whole_number(bins, "bins", 1)
    if finite_number(max_grade, "max_grade", 0) == 0:
        raise ConfigError("max_grade: 0; expected a number above 0")
    judged = [query for query, grades in qrels.items() if grades and len(run.get(query, ()))]
    if len(judged) < (2 if scale is None else 1):
        raise DataError(
            f"calibration: {plural(len(judged), 'judged query')} with hits; expected one or more, "
            "and two without scale and bias; are the ids the same?"
        )
    if scale is None or bias is None:
        scale, bias = platt(*_pairs(run, qrels, judged[::2], k, max_grade))
        judged = judged[1::2]
    scores, grades = _pairs(run, qrels, judged, k, max_grade)
    scale, bias = finite_number(scale, "scale"), finite_number(bias, "bias")
    likely = probabilities(scores, scale, bias)
    groups = reliability(likely, grades, bins)
    return Calibration(error_of(groups), float(scale), float(bias), len(scores), groups)


def reliability(likely: Values, grades: Values, bins: int = BINS) -> tuple[Bin, ...]:
    """Return the bins of equal width that have hits, by their probabilities and grades 0 to 1."""
    places = np.minimum((likely * bins).astype(np.int64), bins - 1)
    counts = np.bincount(places, minlength=bins)
    predicted = np.bincount(places, weights=likely, minlength=bins)
    observed = np.bincount(places, weights=grades, minlength=bins)
    return tuple(
        Bin(b / bins, (b + 1) / bins, int(n), float(predicted[b] / n), float(observed[b] / n))
        for b, n in enumerate(counts.tolist())
        if n
    )


def error_of(bins: tuple[Bin, ...]) -> float:
    """Return the expected calibration error of bins with hits."""
    hits = sum(each.hits for each in bins)
    return sum(each.hits * abs(each.predicted - each.observed) for each in bins) / hits


def _pairs(
    run: Run, qrels: Qrels, queries: list[str], k: int, max_grade: float
) -> tuple[Values, Values]:
    """Return the scores and the grades, 0 to 1, of the first ``k`` hits of the queries."""
    heads = [(qrels[query], run[query][:k]) for query in queries]
    scores = np.concatenate([head.scores for _, head in heads]).astype(np.float64)
    grades = [judged.get(name, 0) for judged, head in heads for name in head.doc_ids]
    return scores, np.clip(np.array(grades, np.float64) / max_grade, 0, 1)


def platt(scores: Values, grades: Values) -> tuple[float, float]:
    """Return the scale and bias of the largest likelihood, by Newton's method."""
    middle, spread = scores.mean(), scores.std() or 1.0
    inputs = np.stack([(scores - middle) / spread, np.ones(len(scores))], axis=1)
    weights = np.zeros(2)
    for _ in range(STEPS):
        likely = _sigmoid(inputs @ weights)
        slope = inputs.T @ (grades - likely) - STIFF * weights
        bend = (inputs * (likely * (1 - likely))[:, None]).T @ inputs + STIFF * np.eye(2)
        step = np.linalg.solve(bend, slope)
        weights = weights + step / max(1.0, float(np.abs(step).max()))  # one step is 1 at most
        if np.abs(step).max() < 1e-10:
            break
    scale = float(weights[0] / spread)
    return scale, float(weights[1] - scale * middle)


def probabilities(scores: Values, scale: float, bias: float) -> Values:
    """Return ``sigmoid(scale * score + bias)``."""
    with np.errstate(over="ignore"):  # an endless logit is a certainty
        return _sigmoid(scale * scores + bias)


def _sigmoid(logits: Values) -> Values:
    chances: Values = 0.5 * (1 + np.tanh(0.5 * logits))
    return chances
