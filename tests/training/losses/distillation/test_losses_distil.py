"""Losses that follow a teacher, against formulas and sentence-transformers."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from score_losses import NAN, cells, drawn, gradient, leaf, mean_of, same
from torch import Tensor
from torch.nn.functional import cross_entropy

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import DataError
from sluice.training.batches.vector_batch import matrix_targets
from sluice.training.losses import LOSSES
from sluice.training.losses.distillation.scores import JudgeKL, KLDiv, MarginMSE
from sluice.training.losses.listwise.lists import ListwiseHinge, RankNet
from sluice.training.protocol import Example, Text

TAUGHT = [
    {"type": "kl_div"},
    {"type": "kl_div", "direction": "reverse"},
    {"type": "judge_kl", "temperature": 1.0},
    {"type": "margin_mse"},
    {"type": "margin_mse", "pairs": "all"},
    {"type": "rank_net", "order": "teacher"},
    {"type": "lambda_distil"},
    {"type": "listwise_hinge"},
    {"type": "list_net", "target": "teacher"},
    {"type": "list_mle", "order": "teacher"},
]

PROPORTIONAL = TAUGHT[:5]  # zero where the scores are the teacher's


def taught(spec: dict[str, Any]) -> Any:
    return build(spec, LOSSES, where="loss")


@pytest.mark.parametrize("average", ["queries", "pairs"])
@pytest.mark.parametrize("pairs", ["positives", "all"])
def test_margin_mse_formula(pairs: str, average: str) -> None:
    scores, labels, mask, teacher = drawn(6)
    labels = (labels > 1).double()
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
    rows, counts, used = [], [], []
    for row, columns in cells(mask, teacher):
        terms = [
            ((2 * scores[row, i] - 2 * scores[row, j]) - (teacher[row, i] - teacher[row, j])) ** 2
            for i in columns
            for j in columns
            if i != j and (pairs == "all" or (labels[row, i] > 0 >= labels[row, j]))
        ]
        if terms:
            rows.append(torch.stack(terms).sum())
            counts.append(len(terms))
            used.append(weights[row])
    number, share = torch.tensor(counts, dtype=torch.float64), torch.stack(used)
    straight = (torch.stack(rows) / number * share).sum() / share.sum()
    if average == "pairs":
        straight = (torch.stack(rows) * share).sum() / (number * share).sum()
    loss = MarginMSE(pairs=pairs, average=average, scale=2.0)
    same(loss(scores, labels, mask, weights, teacher), straight, scores)


class Given(torch.nn.Module):
    """Stands for a model whose embeddings are the features."""

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": features["x"]}


def embedded(seed: int) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:
    """Queries, documents of each place in the group, the groups' scores, a teacher's."""
    torch.manual_seed(seed)
    queries, *documents = (torch.randn(5, 8, requires_grad=True) for _ in range(4))
    scores = torch.stack([(queries * document).sum(1) for document in documents], dim=1)
    return queries, documents, scores, torch.randn(5, 3) * 2


def test_margin_mse_is_sentence_transformers() -> None:
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    queries, documents, scores, teacher = embedded(0)
    other = losses.MarginMSELoss(Given())([{"x": x} for x in (queries, *documents)], teacher)
    labels = torch.tensor([[1.0, 0, 0]] * 5)
    ours = MarginMSE()(scores, labels, None, None, teacher)
    assert ours.item() == pytest.approx(other.item(), rel=1e-5)
    for one in (queries, *documents):
        assert torch.allclose(gradient(ours, one), gradient(other, one), atol=1e-4)


def test_margin_mse_does_not_cancel_in_float32() -> None:
    torch.manual_seed(0)
    scores, teacher = torch.randn(2, 8), torch.randn(2, 8)
    for pairs in ("positives", "all"):
        loss = MarginMSE(pairs=pairs)
        labels = torch.eye(2, 8)
        near = loss(scores, labels, None, None, teacher)
        far = loss(scores, labels, None, None, teacher + 1000)
        assert far.item() == pytest.approx(near.item(), rel=1e-3)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_kl_formula(direction: str) -> None:
    scores, labels, mask, teacher = drawn(7)
    rows = []
    for row, columns in cells(mask, teacher):
        if len(columns) > 1:
            target = torch.softmax(teacher[row, columns] / 2.0, 0)
            student = torch.softmax(scores[row, columns] / 0.5, 0)
            p, q = (target, student) if direction == "forward" else (student, target)
            rows.append((p * (p / q).log()).sum())
    loss = KLDiv(temperature=0.5, teacher_temperature=2.0, direction=direction)
    same(loss(scores, labels, mask, None, teacher), mean_of(rows), scores)
    rescaled = KLDiv(0.5, 2.0, direction, rescaled=True)(scores, labels, mask, None, teacher)
    same(rescaled, mean_of(rows) / 4, scores)


def test_kl_is_sentence_transformers() -> None:
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    queries, documents, scores, teacher = embedded(1)
    other = losses.DistillKLDivLoss(Given(), student_temperature=2.0, teacher_temperature=1.5)(
        [{"x": x} for x in (queries, *documents)], teacher
    )
    loss = KLDiv(temperature=2.0, teacher_temperature=1.5, rescaled=True)
    ours = loss(scores, torch.zeros(5, 3), None, None, teacher)
    assert ours.item() == pytest.approx(other.item(), rel=1e-5)
    for one in (queries, *documents):
        assert torch.allclose(gradient(ours, one), gradient(other, one), atol=1e-5)


def test_kl_to_a_teacher_without_doubt_is_cross_entropy() -> None:
    scores = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(4, 5, dtype=torch.float64)
    ours = KLDiv(teacher_temperature=1e-4)(scores, torch.zeros(4, 5), None, None, teacher)
    same(ours, cross_entropy(scores, teacher.argmax(1)), scores)


def test_judge_kl_formula_and_symmetry() -> None:
    scores, labels, mask, judge = drawn(8)
    rows = []
    for row, columns in cells(mask, judge):
        if len(columns) > 1:
            p = torch.softmax(judge[row, columns] / 0.7, 0)
            q = torch.softmax(scores[row, columns] / 0.7, 0)
            rows.append(((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 2)
    loss = JudgeKL(temperature=0.7)
    value = loss(scores, labels, mask, None, judge)
    same(value, mean_of(rows), scores)
    known = mask & ~judge.isnan()
    turned = loss(judge.nan_to_num(), labels, known, None, scores.detach())
    assert turned.item() == pytest.approx(value.item(), abs=1e-10)
    both = [
        KLDiv(0.7, 0.7, way)(scores, labels, mask, None, judge) for way in ("forward", "reverse")
    ]
    same(value, (both[0] + both[1]) / 2, scores)
    assert value.item() > 0.01


def test_rank_net_by_a_teacher_is_rank_net_by_its_grades() -> None:
    scores, labels, mask, _ = drawn(9)
    teacher = labels.masked_fill(labels == 3, NAN)
    ours = RankNet(order="teacher")(scores, torch.zeros_like(labels), mask, None, teacher)
    same(ours, RankNet()(scores, labels, mask & (labels < 3)), scores)


@pytest.mark.parametrize("order", ["teacher", "columns"])
def test_listwise_hinge_formula(order: str) -> None:
    scores, labels, mask, teacher = drawn(10)
    rows = []
    for row, columns in cells(mask, teacher if order == "teacher" else None):
        best = sorted(columns, key=lambda c: -teacher[row, c].item())
        best = best if order == "teacher" else columns
        terms = [
            torch.relu(scores[row, best[j]] - scores[row, best[i]] + (j - i) * 0.3)
            for i in range(len(best))
            for j in range(i + 1, len(best))
        ]
        if terms:
            rows.append(torch.stack(terms).sum())
    loss = ListwiseHinge(order=order, margin=0.3)
    same(loss(scores, labels, mask, None, teacher), mean_of(rows), scores)


def test_listwise_hinge_is_zero_for_a_list_with_the_gaps() -> None:
    teacher = torch.tensor([[9.0, 4.0, 3.0, -2.0]], dtype=torch.float64)
    scores = leaf([1.5, 1.0, 0.5, 0.0])
    loss = ListwiseHinge(margin=0.5)
    assert loss(scores, torch.zeros(1, 4), None, None, teacher).item() == 0.0
    assert ListwiseHinge(margin=0.6)(scores, torch.zeros(1, 4), None, None, teacher).item() > 0.0


def test_listwise_hinge_of_equals_is_a_plain_hinge() -> None:
    scores = leaf([0.2, 0.5, -0.9])
    labels = torch.tensor([[1.0, 0.0, 0.0]])
    value = ListwiseHinge(order="labels", margin=1.0)(scores, labels)
    straight = torch.relu(1 - scores[0, 0] + scores[0, 1]) + torch.relu(
        1 - scores[0, 0] + scores[0, 2]
    )
    same(value, straight, scores)


@pytest.mark.parametrize("spec", PROPORTIONAL, ids=str)
def test_a_student_like_its_teacher_has_nothing_to_learn(spec: dict[str, Any]) -> None:
    _, labels, mask, teacher = drawn(11)
    scores = teacher.nan_to_num().requires_grad_()
    value = taught(spec)(scores, labels, mask, None, teacher)
    assert abs(value.item()) < 1e-12
    assert gradient(value, scores).abs().max() < 1e-12


@pytest.mark.thorough
@pytest.mark.parametrize("spec", TAUGHT, ids=str)
@settings(derandomize=True, deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000), shift=st.floats(-5, 5))
def test_constants_order_and_cells_without_a_score_do_not_matter(
    spec: dict[str, Any], seed: int, shift: float
) -> None:
    loss = taught(spec)
    scores, labels, mask, teacher = drawn(seed)
    value = loss(scores, labels, mask, None, teacher)
    assert value.item() >= -1e-12
    moved = loss(scores, labels, mask, None, teacher + shift)
    assert moved.item() == pytest.approx(value.item(), abs=1e-9)
    columns, rows = torch.randperm(6), torch.randperm(4)
    shuffled = [x[rows][:, columns] for x in (scores, labels, mask, teacher)]
    turned = loss(shuffled[0], shuffled[1], shuffled[2], None, shuffled[3])
    assert turned.item() == pytest.approx(value.item(), abs=1e-9)
    slope = gradient(value, scores)
    known = mask & ~teacher.isnan()
    assert (slope[~known] == 0).all()
    assert slope.sum(1).abs().max() < 1e-9
    elsewhere = torch.where(known, scores, torch.inf)
    assert loss(elsewhere, labels, mask, None, teacher).item() == pytest.approx(value.item())


@pytest.mark.parametrize("spec", TAUGHT, ids=str)
def test_without_a_teacher(spec: dict[str, Any]) -> None:
    loss = taught(spec)
    assert loss.needs_teacher
    scores, labels = torch.randn(2, 3, requires_grad=True), torch.eye(2, 3)
    remedy = rf"{spec['type']}: the batch has no teacher's scores.*sluice teach distil.*`teacher:`"
    with pytest.raises(DataError, match=remedy):
        loss(scores, labels)
    value = loss(scores, labels, None, None, torch.full((2, 3), NAN))
    assert value.item() == 0.0
    assert (gradient(value, scores) == 0).all()


@pytest.mark.parametrize("spec", TAUGHT, ids=str)
def test_extreme_scores_stay_finite(spec: dict[str, Any]) -> None:
    scores = (torch.randn(3, 5) * 1e4).requires_grad_()
    value = taught(spec)(scores, torch.eye(3, 5), None, None, torch.randn(3, 5) * 1e4)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient(value, scores)).all()


@pytest.mark.parametrize("spec", TAUGHT, ids=str)
def test_weights_weigh_queries(spec: dict[str, Any]) -> None:
    loss = taught(spec)
    scores, labels, teacher = torch.randn(2, 5), torch.eye(2, 5), torch.randn(2, 5)
    one, two = (
        loss(scores[r : r + 1], labels[r : r + 1], None, None, teacher[r : r + 1]) for r in (0, 1)
    )
    value = loss(scores, labels, None, torch.tensor([1.0, 3.0]), teacher)
    assert value.item() == pytest.approx((one.item() + 3 * two.item()) / 4, rel=1e-5)


def test_a_teacher_of_own_documents_in_a_batch_of_all() -> None:
    batch = [
        Example(
            Text(f"q{i}", f"q {i}"),
            tuple(Text(f"d{i}{j}", f"d {i} {j}") for j in range(3)),
            relevant=frozenset({f"d{i}0"}),
        )
        for i in range(3)
    ]
    targets = matrix_targets(batch, "all")
    torch.manual_seed(0)
    scores, taught_scores = torch.randn(3, 9), torch.randn(3, 3)
    teacher = torch.full((3, 9), NAN)
    for row in range(3):
        teacher[row, 3 * row : 3 * row + 3] = taught_scores[row]
    own = torch.stack([scores[r, 3 * r : 3 * r + 3] for r in range(3)])
    for spec in TAUGHT:
        loss = taught(spec)
        wide = loss(scores, targets.labels, targets.mask, None, teacher)
        narrow = loss(own, torch.eye(1, 3).expand(3, 3), None, None, taught_scores)
        assert wide.item() == pytest.approx(narrow.item(), rel=1e-5), spec
