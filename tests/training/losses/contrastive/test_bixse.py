"""BiXSE against straight-line formulas, SigLIP, its biases and its state."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training.losses import LOSSES
from sluice.training.losses.contrastive.pairs import BiXSE, base_rate_bias


def value_and_gradient(value: Tensor, scores: Tensor) -> tuple[float, Tensor]:
    return value.item(), torch.autograd.grad(value, scores, retain_graph=True)[0]


def agree(ours: Tensor, theirs: Tensor, scores: Tensor) -> None:
    (one, slope), (other, rise) = (value_and_gradient(v, scores) for v in (ours, theirs))
    assert abs(one - other) < 1e-10
    assert (slope - rise).abs().max() < 1e-10


def random_scores(*shape: int) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def plain(**options: Any) -> BiXSE:
    """z = s + b: a scale of 1 is exact in float32."""
    return BiXSE(scale=1.0, **options)


def test_binary_labels_are_siglip() -> None:
    scores = random_scores(4, 4)
    signs = 2 * torch.eye(4, dtype=torch.float64) - 1
    expected = -logsigmoid(signs * (scores - 10)).mean()
    agree(plain(bias_init="siglip")(scores, torch.eye(4)), expected, scores)


def test_scale_and_bias_have_their_gradients() -> None:
    scores = random_scores(3, 5).detach()
    labels = torch.rand(3, 5)
    loss = BiXSE(scale=10.0, bias_init=-2.0)
    made = torch.autograd.grad(loss(scores, labels), loss.parameters())
    logarithm = torch.tensor(math.log(10.0), requires_grad=True)
    bias = torch.tensor(-2.0, requires_grad=True)
    other = binary_cross_entropy_with_logits(
        scores * logarithm.exp() + bias, labels.double(), reduction="mean"
    )
    for one, two in zip(made, torch.autograd.grad(other, (logarithm, bias)), strict=True):
        assert one.item() == pytest.approx(two.item(), rel=1e-5)


def test_one_pair_is_one_binary_cross_entropy() -> None:
    scores = random_scores(1, 1)
    z = scores[0, 0] + 0.5
    expected = -0.75 * torch.log(1 / (1 + (-z).exp())) - 0.25 * torch.log(1 / (1 + z.exp()))
    agree(plain(bias_init=0.5, max_grade=4.0)(scores, torch.tensor([[3.0]])), expected, scores)


def test_gradient_is_sigmoid_minus_grade_over_count() -> None:
    scores = random_scores(3, 4)
    labels = torch.tensor([[2.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 2, 1]])
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[0, 1] = mask[2, 0] = False
    weights = torch.tensor([1.0, 2.0, 0.5])
    value = plain(bias_init=-1.0, max_grade=2.0)(scores, labels, mask, weights)
    _, gradient = value_and_gradient(value, scores)
    share = mask * weights[:, None]
    expected = ((scores - 1).sigmoid() - labels / 2) * share / share.sum()
    assert (gradient - expected).abs().max() < 1e-10


def test_minimiser_is_calibrated() -> None:
    grades = torch.tensor([[0.1, 0.5], [0.9, 0.3]], dtype=torch.float64)
    scores = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    loss = plain(bias_init=-0.7)
    optimizer = torch.optim.LBFGS([scores], max_iter=200, tolerance_grad=1e-12)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(scores, grades)
        value.backward()
        return value

    optimizer.step(closure)
    assert ((scores + loss.bias).sigmoid() - grades).abs().max() < 1e-4


@pytest.mark.parametrize("weighted", [False, True])
def test_base_rate_is_the_mean_label(weighted: bool) -> None:
    scores = random_scores(6, 8).detach() * 3
    labels = torch.zeros(6, 8)
    labels[range(6), range(6)] = torch.tensor([1.0, 0.5, 1.0, 1.0, 0.25, 0.75])
    mask = torch.rand(6, 8) > 0.2
    weights = torch.tensor([1.0, 0.0, 2.0, 1.0, 1.0, 0.5]) if weighted else None
    share = mask.double() if weights is None else mask * weights[:, None].double()
    bias = base_rate_bias(scores, labels, share)
    rate = (labels * share).sum() / share.sum()
    mean = ((scores + bias).sigmoid() * share).sum() / share.sum()
    assert abs((mean - rate).item()) < 1e-10
    loss = plain()
    assert math.isnan(loss.notes()["bias"])
    loss(scores, labels, mask, weights)
    assert loss.notes()["bias"] == pytest.approx(bias, rel=1e-6)
    loss(scores + 5, labels, mask, weights)  # only the first batch decides
    assert loss.notes()["bias"] == pytest.approx(bias, rel=1e-6)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_base_rate_of_one_kind_of_label_is_finite(label: float) -> None:
    loss = BiXSE()
    value = loss(torch.zeros(2, 3), torch.full((2, 3), label))
    assert value.isfinite()
    assert abs(loss.notes()["bias"]) == pytest.approx(math.log(11), rel=1e-5)  # 0.5 of 6


def test_state_is_restored() -> None:
    scores, labels = torch.randn(4, 4), torch.eye(4)
    loss = BiXSE().bound_to("cosine")
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.5)
    loss(scores, labels).backward()
    optimizer.step()
    again = BiXSE().bound_to("cosine")
    again.restore(loss.state())
    assert torch.equal(again(scores, labels), loss(scores, labels))
    for name in ("scale", "bias"):
        assert again.notes()[name] == loss.notes()[name]


def test_what_is_not_learnt_has_no_parameter() -> None:
    fixed = BiXSE(learn_scale=False, learn_bias=False).bound_to("cosine")
    assert fixed.parameters() == []
    assert BiXSE(learn_bias=False).parameters() != []
    assert fixed(torch.randn(2, 2), torch.eye(2)).isfinite()
    assert fixed.notes()["scale"] == pytest.approx(20)
    assert BiXSE().bound_to("dot").notes()["scale"] == pytest.approx(1)


def test_grades_above_the_highest_are_named() -> None:
    with pytest.raises(DataError, match=r"a label of 3, expected 0 to max_grade = 2"):
        BiXSE(max_grade=2.0)(torch.zeros(1, 2), torch.tensor([[3.0, 0.0]]))
    with pytest.raises(DataError, match="a label of -1"):
        BiXSE()(torch.zeros(1, 2), torch.tensor([[1.0, -1.0]]))
    masked = torch.tensor([[True, False]])
    assert BiXSE()(torch.zeros(1, 2), torch.tensor([[1.0, -1.0]]), masked).isfinite()


def test_settings_out_of_range() -> None:
    with pytest.raises(ConfigError, match="bias_init: 'zero'"):
        build({"type": "bixse", "bias_init": "zero"}, LOSSES, where="loss")
