"""Fusion of runs: by reciprocal rank, and by weighted sums of normalised scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from encoders.errors import ConfigError, suggest
from retrieval.ranking import Ranking, Run
from retrieval.score_order import canonical_order

Normalise = Literal["min-max", "z-score", "none"]
Array = NDArray[np.float64]
Weighed = tuple[Sequence[str], Array, float]  # ids, what each adds, what a missing one adds


def reciprocal_rank_fusion(
    runs: Sequence[Run], k: float = 60, weights: Sequence[float] | None = None
) -> Run:
    """Fuse runs by the sum of weight / (k + rank), ranks from 1; a missing document adds nothing.

    Ranks are the runs' own orders, whatever their scores. A run of weight 0 is left out, so that
    its documents do not enter. Cormack, Clarke and Buettcher (2009). Raises ``ConfigError`` for no
    runs, a negative ``k``, and weights that are negative, all 0 or not one per run.
    """
    if not k >= 0:
        raise ConfigError(f"reciprocal rank fusion: k is {k}, expected 0 or more")

    def weigh(ranking: Ranking, weight: float) -> Weighed:
        ranks = np.arange(1, len(ranking) + 1, dtype=np.float64)
        return ranking.doc_ids, weight / (k + ranks), 0.0

    return _fused(runs, weights, weigh, "rrf")


def weighted_fusion(
    runs: Sequence[Run],
    weights: Sequence[float] | None = None,
    normalise: Normalise = "min-max",
) -> Run:
    """Fuse runs by the weighted sum of their scores, normalised query by query.

    ``min-max`` maps a list to 0..1, ``z-score`` to mean 0 and deviation 1; a list of equal scores
    becomes 1s and 0s. A document missing in a list gets the list's lowest normalised score (an
    empty list adds nothing), except that one of equal scores gives it 0 under ``min-max``: being
    found must count. A run of weight 0 is left out. Weights are 1 unless given. Raises
    ``ConfigError`` as ``reciprocal_rank_fusion``, and for an unknown normalisation.
    """
    if normalise not in NORMALISATIONS:
        raise ConfigError(
            f"unknown normalisation {normalise!r}; known: {', '.join(NORMALISATIONS)}"
            f"{suggest(normalise, NORMALISATIONS)}"
        )
    normalised = NORMALISATIONS[normalise]

    def weigh(ranking: Ranking, weight: float) -> Weighed:
        scores = normalised(ranking.scores.astype(np.float64))
        lowest = float(scores.min()) if len(scores) else 0.0
        if normalise == "min-max":
            lowest = 0.0
        return ranking.doc_ids, weight * scores, weight * lowest

    return _fused(runs, weights, weigh, "weighted")


def _min_max(scores: Array) -> Array:
    if not len(scores):
        return scores
    lowest, highest = float(scores.min()), float(scores.max())
    return (scores - lowest) / (highest - lowest) if highest > lowest else np.ones_like(scores)


def _z_score(scores: Array) -> Array:
    if not len(scores) or scores.min() == scores.max():
        return np.zeros_like(scores)
    return (scores - float(scores.mean())) / float(scores.std())


def _unchanged(scores: Array) -> Array:
    return scores


NORMALISATIONS: dict[str, Callable[[Array], Array]] = {
    "min-max": _min_max,
    "z-score": _z_score,
    "none": _unchanged,
}


def _fused(
    runs: Sequence[Run],
    weights: Sequence[float] | None,
    weigh: Callable[[Ranking, float], Weighed],
    name: str,
) -> Run:
    """Sum what each run gives each document of each query; queries in order of appearance."""
    used = _weighted_runs(runs, weights)
    queries = dict.fromkeys(query for run, _ in used for query in run)
    return Run(
        {
            query: _summed([weigh(run[query], weight) for run, weight in used if query in run])
            for query in queries
        },
        name=f"{name}({', '.join(run.name for run, _ in used)})",
    )


def _weighted_runs(runs: Sequence[Run], weights: Sequence[float] | None) -> list[tuple[Run, float]]:
    if not runs:
        raise ConfigError("fusion got no runs; expected one or more")
    given = [1.0] * len(runs) if weights is None else [float(weight) for weight in weights]
    if len(given) != len(runs):
        raise ConfigError(f"fusion: {len(given)} weights for {len(runs)} runs; expected one each")
    if not all(0 <= weight < float("inf") for weight in given) or not any(given):
        raise ConfigError(f"fusion: weights {given}; expected 0 or more, and not all of them 0")
    return [(run, weight) for run, weight in zip(runs, given, strict=True) if weight > 0]


def _summed(lists: Sequence[Weighed]) -> Ranking:
    """Add up the lists' columns in float64, list by list in the given order, and rank the sums."""
    places: dict[str, int] = {}
    columns = [
        np.array([places.setdefault(doc_id, len(places)) for doc_id in doc_ids], dtype=np.int64)
        for doc_ids, _, _ in lists
    ]
    sums = np.zeros(len(places))
    for column, (_, scores, missing) in zip(columns, lists, strict=True):
        share = np.full(len(places), missing)
        share[column] = scores
        sums += share
    doc_ids, scores32 = list(places), sums.astype(np.float32)
    order = canonical_order(doc_ids, scores32)
    return Ranking([doc_ids[place] for place in order.tolist()], scores32[order])
