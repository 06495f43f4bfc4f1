"""The multi-similarity loss and its mining, against plain loops in float64 (eq. 7 to 10)."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from sluice.training.losses.own.multi_similarity import MultiSimilarity, mined
from sluice.training.protocol import ScoreMatrix

RNG = np.random.default_rng(4)
SCORES = RNG.uniform(-0.2, 1.0, (5, 9))
LABELS = (RNG.random((5, 9)) < 0.3).astype(float)
MASK = RNG.random((5, 9)) < 0.9
LABELS[0], LABELS[1] = 0.0, 1.0  # no positive; no negative
LABELS[2, :3], LABELS[2, 3:] = (1.0, 1.0, 0.0), 0.0
MASK[2] = True
WEIGHTS = np.array([1.0, 2.0, 0.5, 3.0, 0.0])


def matrix(weights: Any = None) -> ScoreMatrix:
    return ScoreMatrix(
        torch.tensor(SCORES, requires_grad=True), torch.tensor(LABELS), torch.tensor(MASK),
        None if weights is None else torch.tensor(weights), None,
    )  # fmt: skip


def sides(row: int) -> tuple[list[int], list[int]]:
    cells = [column for column in range(9) if MASK[row, column]]
    positives = [column for column in cells if LABELS[row, column] > 0]
    return positives, [column for column in cells if column not in positives]


def taken(row: int, epsilon: float) -> tuple[list[int], list[int]]:
    own, others = sides(row)
    if not own or not others:
        return [], []
    lowest = min(SCORES[row, column] for column in own)
    highest = max(SCORES[row, column] for column in others)
    return (
        [column for column in own if SCORES[row, column] - epsilon < highest],
        [column for column in others if SCORES[row, column] + epsilon > lowest],
    )


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.4])
def test_what_mining_leaves(epsilon: float) -> None:
    scores, labels, mask, _, _ = matrix()
    found = mined(scores, labels, mask, epsilon)
    for row in range(5):
        assert found[row].nonzero()[:, 0].tolist() == sorted(itertools.chain(*taken(row, epsilon)))
    assert found.sum() < mask.sum()


@pytest.mark.parametrize("epsilon", [None, 0.1])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_value(epsilon: float | None, weights: Any) -> None:
    loss = MultiSimilarity(alpha=2.0, beta=40.0, base=0.6, epsilon=epsilon)
    total = share = 0.0
    for row in range(5):
        own, others = sides(row)
        if not own or not others:
            continue
        if epsilon is not None:
            own, others = taken(row, epsilon)
        pull = sum(math.exp(-2.0 * (SCORES[row, column] - 0.6)) for column in own)
        push = sum(math.exp(40.0 * (SCORES[row, column] - 0.6)) for column in others)
        weight = 1.0 if weights is None else weights[row]
        total += weight * (math.log(1 + pull) / 2.0 + math.log(1 + push) / 40.0)
        share += weight
    batch = matrix(weights)
    value = loss._value(batch)
    assert value.item() == pytest.approx(total / share, rel=1e-10)
    value.backward()
    assert bool(torch.isfinite(batch.scores.grad).all())  # type: ignore[union-attr, arg-type]
    assert not batch.scores.grad[0].any()  # type: ignore[index]
