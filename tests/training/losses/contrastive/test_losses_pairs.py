"""Losses over pairs, STAR and the PSL family, against straight-line formulas."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.batches.vector_batch import matrix_targets
from sluice.training.losses import LOSSES
from sluice.training.losses.contrastive.pairs import LOWEST_GAP, PSL, STAR, surrogate
from sluice.training.protocol import Example, Text

ACTIVATIONS = ("tanh", "relu", "atan")


def agree(ours: Tensor, theirs: Tensor, scores: Tensor) -> None:
    assert abs((ours - theirs).item()) < 1e-10
    one, other = (torch.autograd.grad(v, scores, retain_graph=True)[0] for v in (ours, theirs))
    assert (one - other).abs().max() < 1e-10


def softplus(gap: Tensor) -> Tensor:
    return (1 + gap.exp()).log()


def batch(count: int, negatives: int, relevant: frozenset[str] = frozenset()) -> list[Example]:
    return [
        Example(
            Text(f"q{i}", f"query {i}"),
            (
                Text(f"d{i}", f"document {i}"),
                *(Text(f"n{i}{j}", f"negative {i} {j}") for j in range(negatives)),
            ),
            relevant=relevant if i == 0 else frozenset(),
        )
        for i in range(count)
    ]


# -- STAR -----------------------------------------------------------------------------------------


def test_star_on_a_fixed_matrix() -> None:
    scores = torch.tensor(
        [[2.0, 1.0, 0.0], [0.5, 1.5, -1.0], [0.0, 3.0, 1.0]],
        dtype=torch.float64,
        requires_grad=True,
    )
    gaps = [-1.0, -2.0, -1.0, -2.5, -1.0, 2.0]
    value = STAR(similarity="dot")(scores, torch.eye(3))
    assert value.item() == pytest.approx(sum(math.log1p(math.exp(g)) for g in gaps) / 6, abs=1e-12)


def test_star_without_hard_negatives_is_in_batch_rank_net() -> None:
    torch.manual_seed(0)
    scores = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    pairs = [softplus(scores[i, j] - scores[i, i]) for i in range(5) for j in range(5) if i != j]
    expected = torch.stack(pairs).mean()
    targets = matrix_targets(batch(5, 0))
    agree(STAR(similarity="dot")(scores, targets.labels, targets.mask), expected, scores)


def test_star_has_one_denominator_for_random_and_hard() -> None:
    torch.manual_seed(1)
    targets = matrix_targets(batch(4, 2))
    scores = torch.randn(4, 12, dtype=torch.float64, requires_grad=True)
    random = [(i, 3 * j) for i in range(4) for j in range(4) if i != j]
    hard = [(i, 3 * j + h) for i in range(4) for j in range(4) for h in (1, 2)]
    terms = [softplus((scores[i, n] - scores[i, 3 * i]) / 0.05) for i, n in random + hard]
    expected = sum(terms) / (len(random) + len(hard))
    agree(STAR().bound_to("cosine")(scores, targets.labels, targets.mask), expected, scores)


def test_star_leaves_out_exactly_the_relevant_pairs() -> None:
    torch.manual_seed(2)
    targets = matrix_targets(batch(3, 1, relevant=frozenset({"d0", "d2", "n11"})))
    flagged = matrix_targets(batch(3, 1, relevant=frozenset({"d0", "d2", "n10"})))
    assert (~targets.mask).nonzero().tolist() == [[0, 4]]  # n11 is not in the batch
    assert (~flagged.mask).nonzero().tolist() == [[0, 3], [0, 4]]
    scores = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    pairs = [(i, n) for i in range(3) for n in range(6) if n != 2 * i and flagged.mask[i, n]]
    expected = torch.stack([softplus(scores[i, n] - scores[i, 2 * i]) for i, n in pairs]).mean()
    assert len(pairs) == 13
    agree(STAR(similarity="dot")(scores, flagged.labels, flagged.mask), expected, scores)


def test_star_weighs_the_pairs_of_a_query() -> None:
    torch.manual_seed(3)
    scores = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[1.0, 1, 0, 0], [0, 0, 0, 1]])
    expected = sum(
        weight * softplus(scores[i, n] - scores[i, p])
        for weight, i, ps, ns in [(2.0, 0, (0, 1), (2, 3)), (0.5, 1, (3,), (0, 1, 2))]
        for p in ps
        for n in ns
    ) / (2 * 4 + 0.5 * 3)
    made = STAR(similarity="dot")(scores, labels, weights=torch.tensor([2.0, 0.5]))
    agree(made, expected, scores)


# -- PSL ------------------------------------------------------------------------------------------


def straight_phi(gap: Tensor, activation: str) -> Tensor:
    return {"tanh": gap.tanh() + 1, "relu": (gap + 1).relu(), "atan": gap.atan() + 1}[
        activation
    ].log()


def cosine_scores(rows: int, width: int) -> Tensor:
    return (torch.rand(rows, width, dtype=torch.float64) * 2 - 1).requires_grad_()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_psl_by_rows_and_by_pairs(activation: Any, weighted: bool) -> None:
    torch.manual_seed(4)
    scores = cosine_scores(3, 5)
    labels = torch.tensor([[1.0, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 0, 1]])
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[0, 4] = mask[2, 1] = False
    weights = torch.tensor([1.0, 0.5, 3.0]) if weighted else None
    shares = [1.0, 1.0, 1.0] if weights is None else weights.tolist()
    rows, pairs = [], []
    for i in range(3):
        sums = []
        for p in labels[i].nonzero().flatten():
            terms = [
                (straight_phi((scores[i, n] - scores[i, p]) / 2, activation) / 0.1).exp()
                for n in range(5)
                if mask[i, n] and not labels[i, n]
            ]
            sums.append(sum(terms).log())
            pairs += [(shares[i], term) for term in terms]
        rows.append(sum(sums) / len(sums))
    by_rows = sum(row * share for row, share in zip(rows, shares, strict=True)) / sum(shares)
    by_pairs = (sum(s * t for s, t in pairs) / sum(s for s, _ in pairs)).log()
    for method, expected in (("rows", by_rows), ("pairs", by_pairs)):
        loss = PSL(activation=activation, method=method, temperature=0.1)
        agree(loss(scores, labels, mask, weights), expected, scores)


def test_psl_with_the_identity_is_softmax_without_its_positive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "sluice.training.losses.contrastive.pairs.surrogate", lambda gaps, activation: gaps
    )
    torch.manual_seed(5)
    scores = cosine_scores(4, 4)
    rest = scores.masked_fill(torch.eye(4, dtype=torch.bool), -math.inf)
    expected = ((rest / 0.2).logsumexp(1) - scores.diagonal() / 0.2).mean()
    agree(PSL(temperature=0.1)(scores, torch.eye(4)), expected, scores)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_psl_lies_between_the_mistake_and_the_exponential(activation: Any) -> None:
    gaps = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    values = surrogate(gaps, activation).exp()
    slack = 1e-4 if activation == "relu" else 1e-12  # relu is held at the lowest gap
    assert ((gaps >= 0) <= values + 1e-12).all()
    assert (values <= gaps.exp() + slack).all()


@given(
    scores=st.lists(st.floats(-1, 1), min_size=3, max_size=12),
    activation=st.sampled_from(ACTIVATIONS),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_psl_bounds_the_rank_closer_than_the_exponential(scores: list, activation: Any) -> None:
    made = torch.tensor(scores, dtype=torch.float64)
    gaps = (made[1:] - made[0]) / 2
    above = (gaps >= 0).sum().item()  # rank of the positive - 1
    bound = surrogate(gaps, activation).exp().sum().item()
    assert above - 1e-9 <= bound
    assert bound <= gaps.exp().sum().item() + 1e-3


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_psl_is_finite_beyond_its_gaps(activation: Any) -> None:
    gaps = torch.tensor([-1e4, -1.6, -1.0, 1e4], requires_grad=True)
    values = surrogate(gaps, activation)
    values.sum().backward()
    assert values.isfinite().all()
    assert gaps.grad is not None
    assert gaps.grad.isfinite().all()
    if activation != "tanh":
        held = surrogate(torch.tensor([LOWEST_GAP]), activation).item()
        assert values[:3].tolist() == pytest.approx([held] * 3)
        assert not gaps.grad[:3].any()


def test_psl_queries_without_negatives_are_left_out() -> None:
    scores = torch.tensor([[0.5, 0.1], [0.2, 0.3]], requires_grad=True)
    labels, alone = torch.eye(2), torch.tensor([[True, True], [False, True]])
    for method in ("rows", "pairs"):
        loss = PSL(method=method)
        assert torch.allclose(loss(scores, labels, alone), loss(scores[:1], labels[:1]))
        nothing = loss(scores, labels, torch.eye(2, dtype=torch.bool))
        assert nothing.item() == 0.0
        assert not torch.autograd.grad(nothing, scores)[0].any()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"type": "psl", "activation": "tan"}, "expected one of 'tanh', 'relu', 'atan'"),
    ],
)
def test_settings_out_of_range(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(spec, LOSSES, where="loss")


def test_similarity_is_bound() -> None:
    assert STAR().bound_to("dot").similarity == "dot"
    assert PSL().bound_to("dot").similarity == "cosine"
    assert PSL(similarity="auto").bound_to("dot").similarity == "dot"
