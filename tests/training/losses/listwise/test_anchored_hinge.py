"""The anchored hinge against its formula, and what a threshold over its scores means."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from score_losses import cells, drawn, leaf, same
from torch import Tensor

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import DataError
from sluice.training.losses import LOSSES
from sluice.training.losses.listwise.lists import AnchoredHinge


@pytest.mark.parametrize("weighted", [False, True])
def test_the_formula(weighted: bool) -> None:
    """max(0, m - (f_i - f_j)) over pairs, and (f - (y + 1/2) / G)^2 - 1 / (4 G^2) above 0."""
    scores, labels, mask, _ = drawn(3)
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
    loss = AnchoredHinge(margin=0.3, anchor_weight=0.4, grades=4)
    sums, shares, points, counted = [], [], [], []
    for row, columns in cells(mask):
        share = weights[row] if weighted else torch.tensor(1.0, dtype=torch.float64)
        chance = {c: 1 / (1 + torch.exp(-scores[row, c])) for c in columns}
        pairs = [
            torch.relu(0.3 - (chance[i] - chance[j]))
            for i in columns for j in columns if labels[row, i] > labels[row, j]
        ]  # fmt: skip
        if pairs:
            sums.append(share * torch.stack(pairs).mean())
            shares.append(share)
        for c in columns:
            middle = (labels[row, c] + 0.5) / 4
            points.append(share * torch.relu((chance[c] - middle) ** 2 - 1 / 64))
            counted.append(share)
    straight = torch.stack(sums).sum() / torch.stack(shares).sum()
    straight = straight + 0.4 * torch.stack(points).sum() / torch.stack(counted).sum()
    same(loss(scores, labels, mask, weights if weighted else None), straight, scores)


def test_scores_inside_their_intervals_cost_nothing() -> None:
    loss = AnchoredHinge(margin=0.2, grades=2)
    scores = torch.logit(torch.tensor([[0.9, 0.6, 0.3, 0.05]], dtype=torch.float64))
    labels = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    assert loss(scores, labels).item() == 0.0
    # Without an anchor outside, it is the plain hinge of probabilities.
    assert loss(scores[:, 1:3], labels[:, 1:3]).item() == 0.0
    near = torch.logit(torch.tensor([[0.55, 0.45]], dtype=torch.float64))
    assert loss(near, labels[:, 1:3]).item() == pytest.approx(0.1)


def descended(loss: Any) -> Tensor:
    """Scores of two queries that start far apart, after training them alone."""
    scores = leaf([3.0, 2.9], [-3.0, -3.1])
    labels = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    optimizer = torch.optim.Adam([scores], lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        loss(scores, labels).backward()
        optimizer.step()
    return torch.sigmoid(scores.detach())


@pytest.mark.thorough
def test_one_threshold_separates_the_grades_of_every_query() -> None:
    anchored = descended(AnchoredHinge(margin=0.02))
    assert (anchored[:, 0] > 0.5).all()
    assert (anchored[:, 1] < 0.5).all()
    plain = descended(build({"type": "listwise_hinge", "order": "labels"}, LOSSES, where="loss"))
    assert plain[0].min() > plain[1].max()  # in order, and yet each query on its own scale


def test_what_is_masked_or_extreme() -> None:
    loss = AnchoredHinge()
    scores, labels, mask, _ = drawn(1)
    labels = labels.clamp(max=1)
    value = loss(scores, labels, mask)
    noise = torch.where(mask, scores, torch.inf)
    assert loss(noise, torch.where(mask, labels, 9.0), mask).item() == pytest.approx(value.item())
    far = (torch.randn(3, 5) * 1e4).requires_grad_()
    loss(far, torch.randint(0, 2, (3, 5)).float()).backward()
    assert far.grad is not None
    assert torch.isfinite(far.grad).all()
    assert loss(far, torch.ones(3, 5), torch.zeros(3, 5, dtype=torch.bool)).item() == 0.0


def test_what_is_refused() -> None:
    with pytest.raises(DataError, match="a label is 3, and grades: 2 says that the highest is 1"):
        AnchoredHinge()(torch.zeros(1, 2), torch.tensor([[3.0, 0.0]]))
