"""The soft top-k: its threshold, its gradient, its limits."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.losses import LOSSES
from sluice.training.losses.contrastive.pairs import SoftTopK, soft_top_k, threshold


def everything(scores: Tensor) -> Tensor:
    return torch.ones_like(scores, dtype=torch.bool)


@given(
    seed=st.integers(0, 10_000),
    width=st.integers(2, 40),
    k=st.integers(1, 39),
    alpha=st.sampled_from([0.5, 2.0, 8.0]),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_threshold_selects_k(seed: int, width: int, k: int, alpha: float) -> None:
    torch.manual_seed(seed)
    scores = torch.randn(3, width, dtype=torch.float64) * 20
    mask = torch.rand(3, width) > 0.2
    mask[:, : min(k, width - 1) + 1] = True
    wanted = torch.full((3,), min(k, width - 1))
    found = threshold(scores, mask, wanted.double(), alpha)
    sums = ((alpha * (scores + found[:, None])).sigmoid() * mask).sum(1)
    assert (sums - wanted).abs().max() < 1e-6


def test_threshold_of_a_wide_row() -> None:
    scores = torch.zeros(1, 60_000)  # 10 / alpha below the lowest would already select 3
    found = threshold(scores, everything(scores), torch.tensor([1.0]), 2.0)
    assert (2 * found).sigmoid().item() == pytest.approx(1 / 60_000, rel=1e-4)


def newton(scores: Tensor, k: int, alpha: float) -> Tensor:
    """The same through autograd: an unrolled solve from near the solution."""
    t = threshold(
        scores.detach(), everything(scores), torch.full((len(scores),), float(k)), alpha
    ).detach()
    for _ in range(30):
        sigmoid = (alpha * (scores + t[:, None])).sigmoid()
        t = t - (sigmoid.sum(1) - k) / (alpha * sigmoid * (1 - sigmoid)).sum(1)
    return (alpha * (scores + t[:, None])).sigmoid().log()


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("alpha", [0.7, 2.0])
def test_gradient_equals_an_unrolled_newton_solve(k: int, alpha: float) -> None:
    torch.manual_seed(0)
    scores = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    factors = torch.randn(4, 7, dtype=torch.float64)
    ours = soft_top_k(scores, everything(scores), torch.full((4,), k), alpha)
    theirs = newton(scores, k, alpha)
    assert (ours - theirs).abs().max() < 1e-10
    one, other = (torch.autograd.grad((v * factors).sum(), scores)[0] for v in (ours, theirs))
    assert (one - other).abs().max() < 1e-10


def test_gradient_equals_finite_differences() -> None:
    torch.manual_seed(1)
    scores = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    mask = everything(scores)
    mask[0, 2] = mask[1, 0] = mask[2, 5] = False
    k = torch.tensor([1, 2, 4])
    assert torch.autograd.gradcheck(lambda s: soft_top_k(s, mask, k, 2.0), scores)


def test_gradient_of_a_row_sums_to_zero() -> None:
    torch.manual_seed(2)
    scores = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    value = SoftTopK(k=2)(scores, torch.eye(3, 6))
    (gradient,) = torch.autograd.grad(value, scores)
    assert gradient.sum(1).abs().max() < 1e-12  # adding a constant to a row changes nothing
    assert (gradient[range(3), range(3)] < 0).all()


@pytest.mark.parametrize("k", [1, 2, 3])
def test_sharp_selection_is_the_indicator_of_the_best(k: int) -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0, -1.0]], dtype=torch.float64)
    chosen = soft_top_k(scores, everything(scores), torch.tensor([k]), 200.0).exp()
    expected = [[1.0, float(k > 2), float(k > 1), 0.0]]
    assert torch.allclose(chosen, torch.tensor(expected, dtype=torch.float64), atol=1e-9)


def test_loss_is_the_mean_over_positives_then_rows() -> None:
    torch.manual_seed(3)
    scores = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[1.0, 1, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0]])
    weights = torch.tensor([1.0, 3.0])
    logs = newton(scores / 0.5, 2, 2.0)
    expected = (-(logs[0, 0] + logs[0, 1]) / 2 - 3 * logs[1, 3]) / 4
    made = SoftTopK(k=2, temperature=0.5)(scores, labels, weights=weights)
    one, other = (torch.autograd.grad(v, scores)[0] for v in (made, expected))
    assert abs((made - expected).item()) < 1e-10
    assert (one - other).abs().max() < 1e-10
    by_count = SoftTopK(k="positives", temperature=0.5)(scores[:1], labels[:1])
    assert torch.allclose(by_count, SoftTopK(k=2, temperature=0.5)(scores[:1], labels[:1]))


def test_rows_that_are_wholly_selected_contribute_nothing() -> None:
    scores = torch.randn(2, 4, requires_grad=True)
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    labels = torch.tensor([[1.0, 0, 0, 0], [1.0, 0, 0, 0]])
    value = SoftTopK(k=2)(scores, labels, mask)
    assert torch.allclose(value, SoftTopK(k=2)(scores[1:], labels[1:]) / 2)
    assert not torch.autograd.grad(value, scores)[0][0].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_saturated_scores_have_a_gradient(dtype: torch.dtype) -> None:
    scores = torch.tensor([[1e4, -1e4, 0.0, 1e4]], dtype=dtype, requires_grad=True)
    value = SoftTopK(k=2)(scores, torch.tensor([[0.0, 1.0, 0.0, 0.0]]))
    (gradient,) = torch.autograd.grad(value, scores)
    assert value.isfinite()
    assert gradient.isfinite().all()
    assert gradient[0, 1] < 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "soft_top_k.k: 0, expected 1 or above, or 'positives'"),
        ({"k": "all"}, "k: 'all'"),
    ],
)
def test_settings_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build({"type": "soft_top_k", **options}, LOSSES, where="loss")
