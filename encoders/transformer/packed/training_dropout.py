"""Dropout for training passes: torch's own generator, a quarter of torch's own time.

``torch.nn.functional.dropout`` draws a number for every element, which on a CPU is up to a fifth of
a training step; here 16 bits are drawn. What is dropped is a function of torch's random state
alone, whatever the number of threads, so a pass can be repeated.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_STEPS = 1 << 16  # probabilities are multiples of its inverse


class Dropout:
    """What a dropout module does now: ``probability`` 0 in evaluation mode, or without a module."""

    __slots__ = ("probability", "scale", "threshold")

    def __init__(self, module: nn.Dropout | None) -> None:
        wanted = module.p if module is not None and module.training else 0.0
        dropped = round(wanted * _STEPS)
        self.threshold = dropped - _STEPS // 2
        self.probability = dropped / _STEPS
        self.scale = 1 / (1 - self.probability) if dropped < _STEPS else 0.0

    def kept(self, shape: torch.Size | tuple[int, ...]) -> Tensor | None:
        """Draw which elements stay, uint8 of 0 and 1; None: all of them."""
        if not self.probability:
            return None
        kept = torch.empty(shape, dtype=torch.uint8)
        if self.probability >= 1:
            return kept.zero_()
        count = kept.numel()
        bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
        torch.ge(bits.view(torch.int16)[:count], self.threshold, out=kept.view(-1))
        return kept


def added_norm(residual: Tensor, branch: Tensor, dropout: Dropout, norm: nn.LayerNorm) -> Tensor:
    """Return ``norm(residual + dropout(branch))`` in the residual's type, ``[n, hidden]``."""
    out: Tensor = _AddedNorm.apply(  # type: ignore[no-untyped-call]
        residual, branch, norm.weight, norm.bias, norm.eps, dropout
    )
    return out


class _AddedNorm(torch.autograd.Function):
    """Dropout, sum and layer norm, of which only the sum and the mask are kept."""

    @staticmethod
    def forward(
        ctx: Any, residual: Tensor, branch: Tensor, weight: Tensor | None, bias: Tensor | None,
        eps: float, dropout: Dropout,
    ) -> Tensor:  # fmt: skip
        kept = dropout.kept(branch.shape)
        if kept is None:
            total = residual + branch
        else:
            total = torch.add(residual, branch * kept, alpha=dropout.scale)
        out, mean, deviation = torch.native_layer_norm(total, total.shape[-1:], weight, bias, eps)
        ctx.save_for_backward(total, mean, deviation, weight, bias, kept)
        ctx.branch = branch.dtype, dropout.scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        total, mean, deviation, weight, bias, kept = ctx.saved_tensors
        dtype, scale = ctx.branch
        needed = ctx.needs_input_grad
        to_total, to_weight, to_bias = torch.ops.aten.native_layer_norm_backward(
            gradient.contiguous(), total, total.shape[-1:], mean, deviation, weight, bias,
            [needed[0] or needed[1], needed[2], needed[3]],
        )  # fmt: skip
        to_branch = None
        if needed[1]:
            to_branch = to_total.to(dtype) if kept is None else (to_total * scale).to(dtype) * kept
        return (to_total if needed[0] else None), to_branch, to_weight, to_bias, None, None
