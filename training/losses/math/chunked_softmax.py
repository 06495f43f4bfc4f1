"""Log-sum-exp over huge score matrices, a block of columns at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

Counted = Callable[[int, int], Tensor]  # columns from, to -> bool [R, to - from]: cells that count


def online_logsumexp(blocks: Iterable[Tensor]) -> Tensor:
    """Return ``[R]``, the log-sum-exp of each row over all blocks ``[R, c]``, in one pass.

    A running maximum and the sum relative to it are all that is kept (Milakov and Gimelshein 2018,
    alg. 3). Scores must be finite; raises ``ValueError`` without a block.
    """
    top = total = None
    for block in blocks:
        highest = block.amax(1)
        if top is None or total is None:
            total = (block - highest[:, None]).exp_().sum(1)
        else:
            highest = torch.maximum(top, highest)
            total = total * (top - highest).exp() + (block - highest[:, None]).exp_().sum(1)
        top = highest
    if top is None or total is None:
        raise ValueError("online_logsumexp: no block was given")
    return top + total.log()


def chunked_logsumexp(
    left: Tensor,
    right: Tensor,
    counted: Counted,
    *,
    chunk: int,
    shift: Tensor | None = None,
) -> Tensor:
    """Return ``[R]``: ``log sum_j exp(left_i . right_j - shift_j)`` over the cells that count.

    ``left`` ``[R, dim]``, ``right`` ``[N, dim]``; gradients flow into both, not into ``shift``
    ``[N]``. Value and gradient hold ``[R, chunk]`` scores, never ``[R, N]``: the backward pass
    computes each block again. A row of which no cell counts has a value near the lowest finite
    number and no gradient.
    """
    value: Tensor = _ChunkedLogSumExp.apply(left, right, counted, chunk, shift)  # type: ignore[no-untyped-call]
    return value


class _ChunkedLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, counted: Counted, chunk: int, shift: Tensor | None
    ) -> Tensor:
        blocks = _blocks(left, right, counted, chunk, shift)
        value = online_logsumexp(block for _, _, block in blocks)
        ctx.save_for_backward(left, right, shift, value)
        ctx.counted, ctx.chunk = counted, chunk
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        left, right, shift, value = ctx.saved_tensors
        to_left, to_right = torch.zeros_like(left), torch.empty_like(right)
        for start, end, block in _blocks(left, right, ctx.counted, ctx.chunk, shift):
            share = block.sub_(value[:, None]).exp_()
            # A row without any cell is a softmax over its fillings: they get nothing.
            share.masked_fill_(~ctx.counted(start, end), 0.0).mul_(gradients[0][:, None])
            to_left.addmm_(share, right[start:end])
            torch.mm(share.T, left, out=to_right[start:end])
        return to_left, to_right, None, None, None


def _blocks(
    left: Tensor, right: Tensor, counted: Counted, chunk: int, shift: Tensor | None
) -> Iterator[tuple[int, int, Tensor]]:
    for start in range(0, len(right), chunk):
        end = min(start + chunk, len(right))
        block = left @ right[start:end].T
        if shift is not None:
            block -= shift[start:end]
        block.masked_fill_(~counted(start, end), torch.finfo(block.dtype).min / 2)
        yield start, end, block
