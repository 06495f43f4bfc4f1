"""Chunked log-sum-exp against the whole one: value, gradient, memory."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.losses.math.chunked_softmax import chunked_logsumexp, online_logsumexp


@given(scores=arrays("float64", (4, 11), elements=st.floats(-1e4, 1e4)), chunk=st.integers(1, 12))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_one_pass_equals_logsumexp(scores: object, chunk: int) -> None:
    whole = torch.as_tensor(scores)
    made = online_logsumexp(whole.split(chunk, dim=1))
    assert torch.allclose(made, whole.logsumexp(1), rtol=1e-14, atol=1e-10)


def test_no_block_is_an_error() -> None:
    with pytest.raises(ValueError, match="no block"):
        online_logsumexp([])


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize("shifted", [False, True])
def test_value_and_gradient_equal_the_whole(chunk: int, shifted: bool) -> None:
    torch.manual_seed(0)
    left = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    right = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    shift = torch.randn(7, dtype=torch.float64) if shifted else None
    mask = torch.rand(5, 7) > 0.3
    mask[2] = False
    mask[1] = True
    made = chunked_logsumexp(left, right, lambda a, b: mask[:, a:b], chunk=chunk, shift=shift)
    scores = left @ right.T - (0.0 if shift is None else shift)
    rows = [0, 1, 3, 4]
    whole = torch.stack([scores[i][mask[i]].logsumexp(0) for i in rows])
    assert (made[rows] - whole).abs().max() < 1e-10
    assert made[2] < -1e300
    factors = torch.randn(5, dtype=torch.float64)
    ours = torch.autograd.grad((made * factors).sum(), (left, right))
    theirs = torch.autograd.grad((whole * factors[rows]).sum(), (left, right))
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).abs().max() < 1e-10
    assert torch.equal(ours[0][2], torch.zeros(4, dtype=torch.float64))


def test_second_thoughts_agree_with_finite_differences() -> None:
    torch.manual_seed(1)
    left = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    right = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    everything = torch.ones(3, 5, dtype=torch.bool)
    assert torch.autograd.gradcheck(
        lambda a, b: chunked_logsumexp(a, b, lambda s, e: everything[:, s:e], chunk=2),
        (left, right),
    )


class Largest(TorchDispatchMode):
    """Notes how many cells the largest tensor has that any operation makes."""

    cells = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        made = func(*args, **(kwargs or {}))
        for part in tree_leaves(made):
            if isinstance(part, Tensor):
                self.cells = max(self.cells, part.numel())
        return made


@pytest.mark.parametrize("options", [{}, {"symmetric": True}, {"same_side": True}], ids=str)
def test_no_tensor_is_larger_than_a_chunk_or_the_vectors(options: dict[str, bool]) -> None:
    rows, width, dim, chunk = 64, 2048, 4, 16
    torch.manual_seed(2)
    queries = torch.randn(rows, dim, requires_grad=True)
    documents = torch.randn(width, dim, requires_grad=True)
    positives = torch.arange(rows) * 4
    side = 2 * rows if options.get("same_side") else 0
    labels = torch.zeros(rows, width + side)
    labels[torch.arange(rows), positives] = 1
    mask = torch.ones(rows, width + side, dtype=torch.bool)
    owners = torch.arange(width) // (width // rows)
    batch = VectorBatch(queries, documents, labels, mask, positives, owners, cosine=True)

    def largest(size: int | None) -> int:
        with Largest() as seen:  # the backward pass too: it runs in this thread
            InfoNCE(chunk=size, **options).over(batch).backward()
        return seen.cells

    assert largest(chunk) <= max(width * dim, chunk * width if options.get("symmetric") else 0)
    assert largest(None) >= rows * width


def test_extreme_scores_stay_finite() -> None:
    left = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    right = torch.tensor([[1.0], [-1.0], [0.0]])
    value = chunked_logsumexp(left, right, lambda a, b: torch.ones(2, b - a).bool(), chunk=2)
    assert value.tolist() == [1e4, 1e4]
    (gradient,) = torch.autograd.grad(value.sum(), left)
    assert gradient.flatten().tolist() == [1.0, -1.0]
    assert math.isfinite(value.sum().item())
