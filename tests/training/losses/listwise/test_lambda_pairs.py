"""ADORE and lambda distillation against formulas, value and gradient."""

import math
from typing import Any

import pytest
import torch
from score_losses import cells, drawn, gradient, leaf, mean_of, same
from torch import Tensor
from torch.nn.functional import softplus

from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.distillation.scores import MarginMSE
from sluice.training.losses.distillation.vectors import LambdaDistil
from sluice.training.losses.listwise.lists import Adore
from sluice.training.losses.math import reduction as pair_sums

EXACT: dict[str, Any] = {"threshold": 60.0}


def lambda_formula(
    scores: Tensor, order: Tensor, columns: list[int], places: list[int], cut: float = math.inf
) -> list[Tensor]:
    terms = []
    for i, p in zip(columns, places, strict=True):
        for j, q in zip(columns, places, strict=True):
            if order[i] > order[j]:
                swapped = abs((1 / p if p <= cut else 0.0) - (1 / q if q <= cut else 0.0))
                terms.append(swapped * softplus(scores[j] - scores[i], **EXACT))
    return terms


def test_adore_hand_value() -> None:
    scores = leaf([3.0, 2.0, 1.0])
    value = Adore()(scores, torch.tensor([[0.0, 1.0, 0.0]]))
    assert value.item() == pytest.approx(0.35442, abs=5e-6)
    up, down = math.log1p(math.exp(1.0)), math.log1p(math.exp(-1.0))
    assert value.item() == pytest.approx((up / 2 + down / 6) / 2, abs=1e-12)
    assert abs(gradient(value, scores).sum().item()) < 1e-12


@pytest.mark.parametrize("cut", [200, 4, 2])
def test_adore_formula(cut: int) -> None:
    scores, grades, mask, _ = drawn(0)
    labels = (grades > 1).double()
    rows = []
    for row, columns in cells(mask):
        places = [column + 1 for column in columns]
        terms = lambda_formula(scores[row], labels[row], columns, places, cut)
        if terms:
            rows.append(torch.stack(terms).mean())
    value = Adore(metric_cut=cut)(scores, labels, mask)
    same(value, mean_of(rows), scores)
    assert gradient(value, scores).sum(1).abs().max() < 1e-12


def test_adore_vanishes_for_a_first_positive_far_ahead() -> None:
    scores = torch.tensor([[40.0, 1.0, 0.5]], dtype=torch.float64)
    assert Adore()(scores, torch.tensor([[1.0, 0.0, 0.0]])).item() < 1e-12


def test_adore_gives_an_appended_positive_no_reciprocal_rank() -> None:
    scores = leaf([3.0, 2.0, 1.0])
    value = Adore(metric_cut=2)(scores, torch.tensor([[0.0, 0.0, 1.0]]))
    straight = (
        softplus(scores[0, 0] - scores[0, 2]) + softplus(scores[0, 1] - scores[0, 2]) / 2
    ) / 2
    same(value, straight, scores)


def test_adore_reads_the_lists_of_a_batch_side_by_side() -> None:
    torch.manual_seed(0)
    queries, documents = torch.randn(2, 4).double(), torch.randn(6, 4).double()
    labels = torch.tensor([[0.0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1.0]])
    own = torch.zeros(2, 6, dtype=torch.bool)
    own[0, :3] = own[1, 3:] = True
    own[1, 3] = False  # known to be relevant: the others keep their positions
    batch = VectorBatch(
        queries, documents, labels, own, torch.tensor([1, 5]), torch.tensor([0, 0, 0, 1, 1, 1])
    )
    scores = queries @ documents.T
    lists = torch.stack([scores[0, :3], scores[1, 3:]])
    mask = torch.tensor([[True, True, True], [False, True, True]])
    expected = Adore()(lists, torch.tensor([[0.0, 1, 0], [0, 0, 1.0]]), mask)
    assert Adore().over(batch).item() == pytest.approx(expected.item(), abs=1e-12)
    live = VectorBatch(
        queries, documents[:0], labels[:, :3], own[:, :3], batch.positives, batch.owners[:0],
        matrix=scores[:, :3],
    )  # fmt: skip
    assert torch.equal(Adore().over(live), Adore()(scores[:, :3], labels[:, :3], own[:, :3]))


@pytest.mark.parametrize("cells_at_once", [1, 50, 1 << 22])
def test_pairs_in_chunks_are_exact(cells_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, grades, mask, _ = drawn(1, rows=7)
    whole = Adore()(scores, grades, mask)
    monkeypatch.setattr(pair_sums, "CELLS", cells_at_once)
    same(Adore()(scores, grades, mask), whole, scores)


def test_pair_sums_pass_gradcheck() -> None:
    scores, labels, mask, _ = drawn(2, rows=3, width=4)
    assert torch.autograd.gradcheck(lambda s: Adore()(s, labels, mask), (scores,))


def test_lambda_distil_formula() -> None:
    scores, labels, mask, teacher = drawn(3)
    rows = []
    for row, columns in cells(mask, teacher):
        order = sorted(columns, key=lambda c: -scores[row, c].item())
        places = [order.index(column) + 1 for column in columns]
        terms = lambda_formula(scores[row], teacher[row], columns, places)
        if terms:
            rows.append(torch.stack(terms).sum())
    same(LambdaDistil()(scores, labels, mask, None, teacher), mean_of(rows), scores)


def test_lambda_distil_of_labels_in_retrieved_order_is_adore() -> None:
    scores, grades, mask, _ = drawn(4)
    labels, mask = (grades > 1).double(), torch.ones_like(mask)
    ours = LambdaDistil(ranks="columns", average="queries", metric_cut=200)
    same(ours(scores, labels, mask, None, labels), Adore()(scores, labels, mask), scores)
    ranked = Adore(ranks="scores", average="sum", metric_cut=None)
    same(LambdaDistil()(scores, labels, mask, None, labels), ranked(scores, labels, mask), scores)


def test_lambda_distil_sees_only_the_order_of_the_teacher() -> None:
    scores, labels, mask, teacher = drawn(5)
    warped = teacher.exp() * 3 + 1
    value = LambdaDistil()(scores, labels, mask, None, teacher)
    assert torch.equal(LambdaDistil()(scores, labels, mask, None, warped), value)
    margin = MarginMSE(pairs="all")
    assert margin(scores, labels, mask, None, warped) != margin(scores, labels, mask, None, teacher)
    settled = LambdaDistil()(teacher.nan_to_num() * 1e6, labels, mask, None, teacher)
    assert settled.item() < 1e-10
