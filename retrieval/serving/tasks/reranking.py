"""Scores pairs of several requests in one pass of a reranker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sluice.encoders.foundation.errors import ModelError
from sluice.retrieval.serving.content.content import PAIR_TOKENS, tokens_of
from sluice.retrieval.serving.tasks.embedding import Vector, counted_vectors

Pair = tuple[str, str]


def score_all(scorer: Any, pairs: Sequence[Pair]) -> list[Vector]:
    """Return the scorer's own score of each pair, all scored together, and whether it was cut."""

    def scored(pairs: list[Pair]) -> list[float]:
        scores = np.asarray(scorer.score(pairs), np.float64)
        if scores.shape != (len(pairs),) or not np.isfinite(scores).all():
            raise ModelError("the reranker returned no finite number for each pair")
        return scores.tolist()  # type: ignore[no-any-return]

    return counted_vectors(scored, pairs, pair_cost)


def pair_cost(pair: Pair) -> int:
    """Return about how many tokens of a pair are read."""
    return min(2 * PAIR_TOKENS, tokens_of(pair[0]) + tokens_of(pair[1]))


def as_relevance(scores: Sequence[float]) -> list[float]:
    """Return the sigmoid of scores."""
    values = np.asarray(scores, np.float64)
    return [float(value) for value in 0.5 * (1 + np.tanh(values / 2))]


def best_first(scores: Sequence[float], most: int | None) -> list[int]:
    """Return the places of the best scores, ties by place."""
    order = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    return order if most is None else order[:most]
