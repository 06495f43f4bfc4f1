"""Distillation, ADORE and sums of losses against formulas and sentence-transformers."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from score_losses import NAN, cells, drawn, gradient, leaf, mean_of, same
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training.batches.targets import matrix_targets
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.example import Example, Text
from sluice.training.losses import LOSSES
from sluice.training.losses.distillation.kl_div import JudgeKL, KLDiv
from sluice.training.losses.distillation.lambda_distil import LambdaDistil
from sluice.training.losses.distillation.margin_mse import MarginMSE
from sluice.training.losses.listwise.adore import Adore
from sluice.training.losses.listwise.listwise_hinge import ListwiseHinge
from sluice.training.losses.listwise.rank_net import RankNet
from sluice.training.losses.math import pair_sums

EXACT: dict[str, Any] = {"threshold": 60.0}
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


# ADORE


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


# Lambda distillation


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


# MarginMSE


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


# KL


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


# RankNet and the hinge by a teacher


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


# What all that learn from a teacher keep


@pytest.mark.parametrize("spec", PROPORTIONAL, ids=str)
def test_a_student_like_its_teacher_has_nothing_to_learn(spec: dict[str, Any]) -> None:
    _, labels, mask, teacher = drawn(11)
    scores = teacher.nan_to_num().requires_grad_()
    value = taught(spec)(scores, labels, mask, None, teacher)
    assert abs(value.item()) < 1e-12
    assert gradient(value, scores).abs().max() < 1e-12


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


# Sums


def test_sum_is_the_weighted_sum() -> None:
    scores, labels, mask, teacher = drawn(12)
    total = taught(
        {
            "type": "sum",
            "losses": [
                {"type": "kl_div", "weight": 0.99},
                {"type": "info_nce", "weight": 0.01, "temperature": 1.0},
                {"type": "margin_mse", "weight": 0.05, "pairs": "all"},
            ],
        }
    )
    parts = [
        taught({"type": "kl_div"})(scores, labels, mask, None, teacher),
        taught({"type": "info_nce", "temperature": 1.0})(scores, labels, mask, None, teacher),
        taught({"type": "margin_mse", "pairs": "all"})(scores, labels, mask, None, teacher),
    ]
    straight = 0.99 * parts[0] + 0.01 * parts[1] + 0.05 * parts[2]
    same(total(scores, labels, mask, None, teacher), straight, scores)
    assert total.negatives == "all"
    assert total.needs_teacher
    assert not total.same_side
    assert total.layers is None
    assert total.notes() == pytest.approx(
        {
            "loss_kl_div": parts[0].item(),
            "loss_info_nce": parts[1].item(),
            "loss_margin_mse": parts[2].item(),
        }
    )


def test_sum_decides_the_similarity_for_its_members() -> None:
    spec = {"type": "sum", "losses": [{"type": "kl_div"}, {"type": "info_nce"}]}
    total = taught(spec)
    bound = total.bound_to("cosine")
    assert bound.similarity == "cosine"
    assert [loss.similarity for loss in bound.losses] == ["cosine", "cosine"]
    assert [loss.similarity for loss in total.losses] == ["auto", "auto"]
    spec["losses"] = [{"type": "kl_div", "similarity": "dot"}, {"type": "info_nce"}]
    assert [m.similarity for m in taught(spec).bound_to("cosine").losses] == ["dot", "dot"]


class Stateful:
    """A loss with every hook."""

    wants_answered = True

    def __init__(self, rate: float | None = None) -> None:
        self.learning_rate = rate
        self.bias = torch.nn.Parameter(torch.zeros(1))
        self.said: list[Any] = []

    def over(self, batch: VectorBatch) -> Tensor:
        return batch.queries.sum() + self.bias.sum()

    def bind(self, encoder: Any, seed: int) -> None:
        self.said.append(seed)

    def layers(self, step: int) -> tuple[int, ...]:
        return (2, 1)

    def parameters(self) -> list[torch.nn.Parameter]:
        return [self.bias]

    def state(self) -> dict[str, Tensor]:
        return {"bias": self.bias.detach()}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.said.append(state)

    def advance(self, step: int) -> None:
        self.said.append(step)

    def notes(self) -> dict[str, float]:
        return {"bias": 0.5}

    def save(self, folder: Any) -> None:
        self.said.append(folder)


class Plain(Stateful):
    """One that asks for no layers."""

    layers = None


def test_sum_forwards_every_hook(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOSSES, "stateful", f"{__name__}:Stateful")
    monkeypatch.setattr("sluice.encoders.foundation.build.resolve", _resolved)
    losses = [{"type": "info_nce", "weight": 0.0}, {"type": "stateful", "weight": 2.0}]
    total = taught({"type": "sum", "losses": losses})
    member = total.losses[1].loss
    total.bind(None, 7)
    total.advance(3)
    total.restore({"1.bias": torch.ones(1), "0.other": torch.zeros(1)})
    total.save(tmp_path)
    assert member.said == [8, 3, {"bias": torch.ones(1)}, tmp_path]
    assert total.wants_answered
    assert total.layers(5) == (2, 1)
    assert total.parameters() == [member.bias]
    assert total.learning_rate is None
    assert list(total.state()) == ["1.bias"]
    assert not total.texts
    batch = VectorBatch(
        torch.ones(2, 2), torch.ones(2, 2), torch.eye(2), torch.ones(2, 2).bool(),
        torch.arange(2), torch.arange(2),
    )  # fmt: skip
    assert total.over(batch).item() == 8.0
    assert total.notes() == {"loss_info_nce": pytest.approx(0.6931, abs=1e-3)} | {
        "loss_stateful": 4.0, "bias": 0.5,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="Stateful: needs the vectors"):
        total(torch.ones(2, 2), torch.eye(2))
    with pytest.raises(ConfigError, match="stateful and stateful_2 both ask for layers"):
        taught({"type": "sum", "losses": [{"type": "stateful"}, {"type": "stateful"}]})
    monkeypatch.setitem(LOSSES, "plain", f"{__name__}:Plain")
    rates = [{"type": "stateful", "rate": 1e-3}, {"type": "plain"}]
    with pytest.raises(ConfigError, match=r"learning_rate is 0.001 for stateful and None for"):
        _ = taught({"type": "sum", "losses": rates}).learning_rate


def _resolved(target: str) -> Any:
    import importlib

    module, _, name = target.partition(":")
    return globals()[name] if module == __name__ else getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ([], "losses: empty"),
        ([3], r"losses\[0\]: 3, expected"),
        ([{"type": "kl_divv"}], r"losses\[0\].type: unknown type 'kl_divv'.*did you mean 'kl_div'"),
        ([{"type": "kl_div", "tau": 1}], r"losses\[0\].tau: kl_div takes"),
        ([{"type": "kl_div", "weight": "x"}], r"losses\[0\].weight: 'x', expected a number"),
        ([{"type": "kl_div", "weight": -1}], r"kl_div.weight: -1.0, expected 0 or more"),
        (
            [{"type": "info_nce"}, {"type": "rank_net"}],
            "negatives is 'all' for info_nce and 'own' for rank_net",
        ),
        (
            [{"type": "info_nce", "same_side": True}, {"type": "info_nce"}],
            "same_side is True for info_nce and False for info_nce_2",
        ),
        (
            [{"type": "info_nce", "similarity": "dot"}, {"type": "kl_div", "similarity": "cosine"}],
            "similarity is 'dot' for info_nce and 'cosine' for kl_div",
        ),
    ],
)
def test_sums_that_do_not_go_together(losses: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        taught({"type": "sum", "losses": losses})


def test_sum_for_cross_encoders_only() -> None:
    free = taught({"type": "sum", "losses": [{"type": "kl_div"}, {"type": "margin_mse"}]})
    assert free.encoders is None
    assert free.negatives == "own"
    total = taught({"type": "sum", "losses": [{"type": "bce"}, {"type": "info_nce"}]})
    assert total.encoders == ("cross_encoder",)
    assert total.negatives == "own"


# Query by document


def grouped(weight: float, margin: float = 1.0, **vectors: Tensor) -> tuple[Any, VectorBatch]:
    labels = torch.tensor([[1.0, 0, 0], [0, 1, 0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    torch.manual_seed(3)
    batch = VectorBatch(
        vectors.get("queries", torch.randn(2, 4, dtype=torch.float64, requires_grad=True)),
        vectors.get("documents", torch.randn(5, 4, dtype=torch.float64, requires_grad=True)),
        labels,
        mask,
        torch.tensor([0, 1]),
        torch.tensor([0, 0, 0, 1, 1]),
        matrix=torch.randn(2, 3, dtype=torch.float64, requires_grad=True),
    )
    return taught({"type": "qbd", "triplet_weight": weight, "margin": margin}), batch


def test_qbd_formula() -> None:
    loss, batch = grouped(0.3, margin=2.0)
    assert loss.texts
    assert loss.encoders == ("cross_encoder",)
    queries, documents = batch.queries, batch.documents
    apart = [[(queries[r] - documents[n]).norm() for n in range(5)] for r in range(2)]
    triplet = (
        (torch.relu(apart[0][0] - apart[0][1] + 2) + torch.relu(apart[0][0] - apart[0][2] + 2)) / 2
        + torch.relu(apart[1][4] - apart[1][3] + 2)
    ) / 2
    softmax = taught({"type": "localized_softmax"})
    straight = softmax(batch.matrix, batch.labels, batch.mask) + 0.3 * triplet
    for one in (queries, documents, batch.matrix):
        same(loss.over(batch), straight, one)
    builtin = torch.nn.functional.triplet_margin_loss(
        queries[[0, 0]], documents[[0, 0]], documents[[1, 2]], margin=2.0, eps=0.0
    )
    first = (
        torch.relu(apart[0][0] - apart[0][1] + 2) + torch.relu(apart[0][0] - apart[0][2] + 2)
    ) / 2
    assert builtin.item() == pytest.approx(first.item(), abs=1e-10)


def test_qbd_without_triplets_is_its_base() -> None:
    loss, batch = grouped(0.0)
    assert not loss.texts
    base = taught({"type": "localized_softmax"})
    plain = base(batch.matrix, batch.labels, batch.mask)
    assert torch.equal(loss.over(batch), plain)
    assert torch.equal(gradient(loss.over(batch), batch.matrix), gradient(plain, batch.matrix))


def test_qbd_of_equal_texts_and_of_none() -> None:
    same_text = torch.ones(2, 4, dtype=torch.float64, requires_grad=True)
    loss, batch = grouped(1.0, queries=same_text, documents=same_text.detach()[[0] * 5])
    assert torch.isfinite(gradient(loss.over(batch), same_text)).all()
    loss, batch = grouped(1.0, documents=torch.zeros(0, 4).double())
    with pytest.raises(ConfigError, match="0 vectors of 5 documents"):
        loss.over(batch)


def test_qbd_takes_any_base() -> None:
    loss = taught({"type": "qbd", "base": {"type": "margin_mse"}})
    assert loss.needs_teacher
    with pytest.raises(ConfigError, match=r"base.type: unknown type 'bcee'; .*'bce'"):
        taught({"type": "qbd", "base": {"type": "bcee"}})
    with pytest.raises(ConfigError, match=r"base: info_nce does not train a cross_encoder"):
        taught({"type": "qbd", "triplet_weight": 0, "base": {"type": "info_nce", "chunk": 8}})
    with pytest.raises(ConfigError, match=r"qbd.margin: 0, expected above 0"):
        taught({"type": "qbd", "margin": 0})


# In a batch of all documents


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
