"""Losses over graded groups against formulas, brute force and sentence-transformers."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from score_losses import cells, drawn, gradient, leaf, mean_of, same, theirs
from torch import Tensor
from torch.nn.functional import softplus

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.losses import LOSSES
from sluice.training.losses.contrastive.softmax import LocalizedSoftmax
from sluice.training.losses.listwise.lambda_loss import LambdaLoss, delta_ndcg
from sluice.training.losses.listwise.lists import ListMLE, ListNet, RankNet

EXACT: dict[str, Any] = {"threshold": 60.0}


def ndcg(gains: list[float], ranks: list[int], cutoff: int | None) -> float:
    cut = cutoff or len(gains)
    found = sum(g / math.log2(1 + r) for g, r in zip(gains, ranks, strict=True) if r <= cut)
    ideal = sorted(gains, reverse=True)[:cut]
    return found / sum(g / math.log2(2 + place) for place, g in enumerate(ideal))


def ranked(scores: Tensor, row: int, columns: list[int]) -> dict[int, int]:
    order = sorted(columns, key=lambda c: -scores[row, c].item())
    return {column: place + 1 for place, column in enumerate(order)}


@pytest.mark.parametrize("cutoff", [None, 2])
@pytest.mark.parametrize("average", ["queries", "pairs", "sum"])
def test_rank_net_formula(cutoff: int | None, average: str) -> None:
    scores, labels, mask, _ = drawn(0)
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
    sums, counts, used = [], [], []
    for row, columns in cells(mask):
        rank = ranked(scores, row, columns)
        pairs = [
            softplus(scores[row, j] - scores[row, i], **EXACT)
            for i in columns
            for j in columns
            if labels[row, i] > labels[row, j]
            and (cutoff is None or min(rank[i], rank[j]) <= cutoff)
        ]
        if pairs:
            sums.append(torch.stack(pairs).sum())
            counts.append(len(pairs))
            used.append(weights[row])
    share = torch.stack(used)
    if average == "pairs":
        number = torch.tensor(counts)
        straight = (torch.stack(sums) * share).sum() / (number * share).sum()
    else:
        each = [s / n if average == "queries" else s for s, n in zip(sums, counts, strict=True)]
        straight = (torch.stack(each) * share).sum() / share.sum()
    ours = RankNet(cutoff=cutoff, average=average)(scores, labels, mask, weights)
    same(ours, straight, scores)


def test_rank_net_of_one_positive_is_the_mean_logistic_loss() -> None:
    scores = leaf([1.0, 0.3, -0.4])
    value = RankNet()(scores, torch.tensor([[1.0, 0.0, 0.0]]))
    straight = (softplus(scores[0, 1] - scores[0, 0]) + softplus(scores[0, 2] - scores[0, 0])) / 2
    same(value, straight, scores)


@pytest.mark.parametrize("cutoff", [None, 1, 3, 9])
@pytest.mark.parametrize("seed", range(3))
def test_delta_ndcg_is_a_swap(cutoff: int | None, seed: int) -> None:
    torch.manual_seed(seed)
    gains = torch.randint(0, 4, (2, 6)).double().exp2() - 1
    gains[:, 0] = 7
    ranks = torch.stack([torch.randperm(6) + 1 for _ in range(2)])
    matrix = delta_ndcg(gains, ranks, cutoff)
    for row in range(2):
        held = gains[row].tolist()
        before = ndcg(held, ranks[row].tolist(), cutoff)
        for i in range(6):
            for j in range(6):
                swapped = ranks[row].tolist()
                swapped[i], swapped[j] = swapped[j], swapped[i]
                moved = abs(ndcg(held, swapped, cutoff) - before)
                assert matrix[row, i, j].item() == pytest.approx(moved, abs=1e-12)


@pytest.mark.parametrize("gain", ["exponential", "linear"])
@pytest.mark.parametrize("cutoff", [None, 2])
def test_lambda_loss_formula(gain: str, cutoff: int | None) -> None:
    scores, labels, mask, _ = drawn(1)
    rows = []
    for row, columns in cells(mask):
        rank = ranked(scores, row, columns)
        gains = [labels[row, c].item() for c in columns]
        gains = [2**g - 1 for g in gains] if gain == "exponential" else gains
        ranks = [rank[c] for c in columns]
        terms = []
        for a, i in enumerate(columns):
            for b, j in enumerate(columns):
                if labels[row, i] > labels[row, j]:
                    swapped = list(ranks)
                    swapped[a], swapped[b] = ranks[b], ranks[a]
                    moved = abs(ndcg(gains, swapped, cutoff) - ndcg(gains, ranks, cutoff))
                    terms.append(moved * softplus(scores[row, j] - scores[row, i], **EXACT))
        if terms:
            rows.append(torch.stack(terms).sum())
    same(LambdaLoss(gain=gain, cutoff=cutoff)(scores, labels, mask), mean_of(rows), scores)


@pytest.mark.parametrize("weighting", ["delta_ndcg", "ndcg_loss2", "ndcg_loss2++"])
def test_lambda_loss_is_sentence_transformers(weighting: str) -> None:
    losses = pytest.importorskip("sentence_transformers.cross_encoder.losses")
    schemes = {
        "delta_ndcg": losses.LambdaRankScheme(),
        "ndcg_loss2": losses.NDCGLoss2Scheme(),
        "ndcg_loss2++": losses.NDCGLoss2PPScheme(mu=10.0),
    }
    matrix, grades, mask, _ = drawn(2)
    scores = matrix.detach().float().requires_grad_()
    labels = grades.float()
    # Discounts of ranks beyond k stay in theirs, so only nDCG's own bound takes the same k.
    cutoff = 2 if weighting == "ndcg_loss2" else None
    other = theirs(
        lambda model: losses.LambdaLoss(model, weighting_scheme=schemes[weighting], k=cutoff),
        scores,
        labels,
        mask,
    )
    ours = LambdaLoss(weighting=weighting, average="pairs", cutoff=cutoff)(scores, labels, mask)
    assert ours.item() / math.log(2) == pytest.approx(other.item(), rel=1e-5)  # theirs in bits
    assert torch.allclose(gradient(ours, scores) / math.log(2), gradient(other, scores), atol=1e-5)


@pytest.mark.parametrize("cutoff", [None, 2])
def test_rank_net_is_sentence_transformers(cutoff: int | None) -> None:
    losses = pytest.importorskip("sentence_transformers.cross_encoder.losses")
    matrix, grades, mask, _ = drawn(3)
    scores, labels = matrix.detach().float().requires_grad_(), grades.float()
    other = theirs(
        lambda model: losses.RankNetLoss(model, k=cutoff, reduction_log="natural"),
        scores,
        labels,
        mask,
    )
    ours = RankNet(average="pairs", cutoff=cutoff)(scores, labels, mask)
    assert ours.item() == pytest.approx(other.item(), rel=1e-5)
    assert torch.allclose(gradient(ours, scores), gradient(other, scores), atol=1e-5)


@pytest.mark.parametrize("temperatures", [(1.0, 1.0), (0.5, 2.0)])
def test_list_net_formula(temperatures: tuple[float, float]) -> None:
    scores, labels, mask, _ = drawn(4)
    student, target = temperatures
    rows = [
        -(
            torch.softmax(labels[row, columns] / target, 0)
            * torch.log_softmax(scores[row, columns] / student, 0)
        ).sum()
        for row, columns in cells(mask)
        if labels[row, columns].unique().numel() > 1
    ]
    ours = ListNet(temperature=student, target_temperature=target)(scores, labels, mask)
    same(ours, mean_of(rows), scores)


def test_list_net_is_sentence_transformers() -> None:
    losses = pytest.importorskip("sentence_transformers.cross_encoder.losses")
    matrix, grades, mask, _ = drawn(5)
    scores, labels = matrix.detach().float()[:3].requires_grad_(), grades.float()[:3]
    other = theirs(losses.ListNetLoss, scores, labels, mask[:3])
    ours = ListNet()(scores, labels, mask[:3])
    assert ours.item() == pytest.approx(other.item(), rel=1e-5)
    assert torch.allclose(gradient(ours, scores), gradient(other, scores), atol=1e-5)


def test_list_net_with_a_teacher_has_the_gradient_of_kl() -> None:
    scores, labels, mask, teacher = drawn(6)
    ours = ListNet(target="teacher")(scores, labels, mask, None, teacher)
    kl = build({"type": "kl_div"}, LOSSES, where="loss")(scores, labels, mask, None, teacher)
    assert (gradient(ours, scores) - gradient(kl, scores)).abs().max() < 1e-10


@pytest.mark.parametrize("position_aware", [False, True])
def test_list_mle_formula_without_ties(position_aware: bool) -> None:
    scores, _, mask, _ = drawn(7)
    labels = torch.stack([torch.randperm(6) for _ in range(4)]).double()
    rows = []
    for row, columns in cells(mask):
        best = sorted(columns, key=lambda c: -labels[row, c].item())
        number = len(best)
        weigh = [2.0 ** (number - place) - 1 for place in range(1, number + 1)]
        terms = []
        for place in range(number):
            rest = scores[row, best[place:]]
            weight = weigh[place] / sum(weigh) if position_aware and number > 1 else 1.0
            terms.append(weight * (rest.logsumexp(0) - rest[0]))
        if number > 1:
            rows.append(torch.stack(terms).sum())
    same(ListMLE(position_aware=position_aware)(scores, labels, mask), mean_of(rows), scores)


@pytest.mark.parametrize("position_aware", [False, True])
def test_list_mle_formula_with_ties(position_aware: bool) -> None:
    scores, labels, mask, _ = drawn(8)
    rows = []
    for row, columns in cells(mask):
        best = sorted(columns, key=lambda c: -labels[row, c].item())
        number = len(best)
        weigh = [2.0 ** (number - place) - 1 for place in range(1, number + 1)]
        terms = []
        for i in columns:
            after = [j for j in columns if labels[row, j] < labels[row, i]]
            equals = [p for p, c in enumerate(best) if labels[row, c] == labels[row, i]]
            weight = sum(weigh[p] for p in equals) / len(equals) / (sum(weigh) or 1.0)
            if after:
                terms.append(
                    (weight if position_aware else 1.0)
                    * (scores[row, [i, *after]].logsumexp(0) - scores[row, i])
                )
        if terms:
            rows.append(torch.stack(terms).sum())
    same(ListMLE(position_aware=position_aware)(scores, labels, mask), mean_of(rows), scores)


def test_list_mle_of_one_positive_is_localized_softmax() -> None:
    scores, _, mask, _ = drawn(9)
    labels = torch.zeros_like(mask, dtype=torch.float64)
    labels[:, 2] = 1.0
    mask = mask.clone()
    mask[:3, 2] = True
    mask[3] = False  # a single document counts there and not here
    same(ListMLE()(scores, labels, mask), LocalizedSoftmax()(scores, labels, mask), scores)


@pytest.mark.parametrize("position_aware", [False, True])
def test_list_mle_is_sentence_transformers(position_aware: bool) -> None:
    losses = pytest.importorskip("sentence_transformers.cross_encoder.losses")
    matrix, grades, mask, _ = drawn(10)
    scores, labels = matrix.detach().float()[:3].requires_grad_(), grades.float()[:3]
    make = losses.PListMLELoss if position_aware else losses.ListMLELoss
    other = theirs(make, scores, labels, mask[:3])  # which takes the documents' own order
    ours = ListMLE(order="columns", position_aware=position_aware)(scores, labels, mask[:3])
    assert ours.item() == pytest.approx(other.item(), rel=1e-5)
    assert torch.allclose(gradient(ours, scores), gradient(other, scores), atol=1e-5)


def test_position_weights_of_long_lists_stay_finite() -> None:
    torch.manual_seed(0)
    scores = torch.randn(2, 3000, requires_grad=True)
    labels = torch.arange(3000.0).expand(2, -1)
    value = ListMLE(position_aware=True)(scores, labels)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient(value, scores)).all()


GRADED = [
    {"type": "rank_net"},
    {"type": "rank_net", "cutoff": 2},
    {"type": "lambda_loss"},
    {"type": "lambda_loss", "weighting": "ndcg_loss2++", "cutoff": 3},
    {"type": "list_net"},
    {"type": "list_mle"},
    {"type": "list_mle", "position_aware": True},
    {"type": "listwise_hinge", "order": "labels"},
]


@pytest.mark.thorough
@pytest.mark.parametrize("spec", GRADED, ids=str)
@settings(derandomize=True, deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000), shift=st.floats(-5, 5))
def test_order_constants_and_masked_cells_do_not_matter(
    spec: dict[str, Any], seed: int, shift: float
) -> None:
    loss = build(spec, LOSSES, where="loss")
    scores, labels, mask, _ = drawn(seed)
    value = loss(scores, labels, mask)
    columns, rows = torch.randperm(6), torch.randperm(4)
    moved = loss(scores[rows][:, columns], labels[rows][:, columns], mask[rows][:, columns])
    assert moved.item() == pytest.approx(value.item(), abs=1e-10)
    assert loss(scores + shift, labels, mask).item() == pytest.approx(value.item(), abs=1e-9)
    noise = torch.where(mask, scores, torch.inf)
    assert loss(noise, labels, mask).item() == pytest.approx(value.item(), abs=1e-10)
    slope = gradient(value, scores)
    assert (slope[~mask] == 0).all()
    assert slope.sum(1).abs().max() < 1e-10


@pytest.mark.parametrize("spec", GRADED, ids=str)
def test_equal_grades_give_nothing_and_extreme_scores_stay_finite(spec: dict[str, Any]) -> None:
    loss = build(spec, LOSSES, where="loss")
    scores = (torch.randn(3, 5) * 1e4).requires_grad_()
    for labels in (torch.zeros(3, 5), torch.ones(3, 5)):
        value = loss(scores, labels)
        assert value.item() == 0.0
        assert (gradient(value, scores) == 0).all()
    value = loss(scores, torch.randint(0, 3, (3, 5)).float())
    assert torch.isfinite(value)
    assert torch.isfinite(gradient(value, scores)).all()
    nothing = loss(scores, torch.ones(3, 5), torch.zeros(3, 5, dtype=torch.bool))
    assert nothing.item() == 0.0


@pytest.mark.parametrize("spec", GRADED, ids=str)
def test_a_wide_matrix_is_its_own_groups(spec: dict[str, Any]) -> None:
    loss = build(spec, LOSSES, where="loss")
    torch.manual_seed(0)
    groups, labels = torch.randn(4, 5), torch.randint(0, 3, (4, 5)).float()
    wide = torch.randn(4, 20)
    mask = torch.zeros(4, 20, dtype=torch.bool)
    grades = torch.zeros(4, 20)
    for row in range(4):
        part = slice(5 * row, 5 * row + 5)
        wide[row, part], grades[row, part], mask[row, part] = groups[row], labels[row], True
    assert loss(wide, grades, mask).item() == pytest.approx(loss(groups, labels).item(), rel=1e-6)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"type": "rank_net", "order": "teachers"}, r"'labels', 'teacher'"),
    ],
)
def test_settings_out_of_range(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(spec, LOSSES, where="loss")


@pytest.mark.parametrize("kind", ["rank_net", "lambda_loss", "list_net", "list_mle"])
def test_cosine_scores_are_spread(kind: str) -> None:
    scores, labels = torch.rand(2, 4), torch.tensor([[1.0, 0, 0, 0], [0, 2, 1, 0]])
    loss = build({"type": kind}, LOSSES, where="loss")
    bound = loss.bound_to("cosine")(scores, labels).item()
    ranks_of_gaps = build(
        {"type": kind, **({"scale": 20.0} if kind in ("rank_net", "lambda_loss") else {})}
        | ({"temperature": 0.05} if kind.startswith("list") else {}),
        LOSSES,
        where="loss",
    )
    assert bound == pytest.approx(ranks_of_gaps(scores, labels).item())
    assert loss.bound_to("dot")(scores, labels).item() == loss(scores, labels).item()
