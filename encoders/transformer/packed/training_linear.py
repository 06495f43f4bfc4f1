"""Linear layers for training: all three products by oneDNN where that is faster than torch's own.

On CPUs that MKL does not tune for, oneDNN's float32 product is about twice as fast as the one
behind ``torch.nn.functional.linear``, and torch's autograd never uses it. The weights stay the
module's own parameters, in their own type; ``dtype`` is that of the products, as under autocast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.transformer.packed.linear import Activation, onednn

ROWS = 512  # of a weight's gradient at a time: their transposes stay in the cache


def linear(
    x: Tensor, layers: Sequence[nn.Linear], dtype: torch.dtype, *, activation: Activation = "none"
) -> Tensor:
    """Return ``[n, out]`` of ``activation(x)`` ``[n, in]`` by one layer, or several side by side.

    The product and the result are in ``dtype``; gradients go to the layers' parameters. Of the
    activation only ``x`` is kept: it is computed again in the backward pass.
    """
    weights = [layer.weight for layer in layers]
    biases = [layer.bias for layer in layers]
    out: Tensor = _Linear.apply(  # type: ignore[no-untyped-call]
        x, dtype, activation, *weights, *biases
    )
    return out


class _Linear(torch.autograd.Function):
    """``activation(x) W^T + b``, the rows of several layers' weights under each other."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dtype: torch.dtype, activation: Activation, *parameters: Tensor | None
    ) -> Tensor:
        count = len(parameters) // 2
        weights = [part for part in parameters[:count] if part is not None]
        rows = x.to(dtype)
        ctx.save_for_backward(rows, *weights)
        ctx.kinds = x.dtype, dtype, activation
        biases = [part for part in parameters[count:] if part is not None]
        bias = joined(biases, dtype) if biases else None
        return product(activated(rows, activation), joined(weights, dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        rows, *weights = ctx.saved_tensors
        kind, dtype, activation = ctx.kinds
        needed, gradient = ctx.needs_input_grad, gradient.contiguous()
        of_weights, of_biases = needed[3 : 3 + len(weights)], needed[3 + len(weights) :]
        count = len(weights)
        sizes = [len(weight) for weight in weights]
        to_rows = None
        if needed[0]:
            to_rows = product(gradient, joined(weights, dtype).t().contiguous(), None)
            to_rows = activation_gradient(to_rows, rows, activation).to(kind)
        to_weights: Sequence[Tensor | None] = [None] * count
        if any(of_weights):
            whole = weight_gradient(gradient, activated(rows, activation)).to(weights[0].dtype)
            to_weights = [
                part if wanted else None
                for part, wanted in zip(torch.split(whole, sizes), of_weights, strict=True)
            ]
        to_biases: Sequence[Tensor | None] = [None] * count
        if any(of_biases):
            whole = gradient.sum(0, dtype=weights[0].dtype)
            to_biases = [
                part if wanted else None
                for part, wanted in zip(torch.split(whole, sizes), of_biases, strict=True)
            ]
        return to_rows, None, None, *to_weights, *to_biases


def joined(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return tensors under each other, in ``dtype``."""
    return (parts[0] if len(parts) == 1 else torch.cat(list(parts))).to(dtype)


def activated(x: Tensor, activation: Activation) -> Tensor:
    """Return the activation of ``x``, which may be none."""
    if activation == "none":
        return x
    if activation == "relu":
        return functional.relu(x)
    return functional.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def activation_gradient(gradient: Tensor, x: Tensor, activation: Activation) -> Tensor:
    """Return the gradient by ``x`` of what has ``gradient`` by ``activation(x)``."""
    if activation == "none":
        return gradient
    if activation == "relu":
        return gradient * (x > 0)
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    out: Tensor = torch.ops.aten.gelu_backward(gradient, x, approximate=approximate)
    return out


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``x W^T + b`` without gradients, ``[n, out]`` of ``[n, in]``, all in one type."""
    operators = onednn(x.device.type, x.dtype)
    if operators is None:
        return functional.linear(x, weight, bias)
    out: Tensor = operators._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """Return ``gradient^T x`` without gradients, ``[out, in]`` of ``[n, out]`` and ``[n, in]``."""
    # In bfloat16 torch's own product is by oneDNN already.
    operators = onednn(x.device.type, x.dtype) if x.dtype is torch.float32 else None
    if operators is None or not len(x):
        return gradient.t() @ x
    total: Tensor | None = None
    for start in range(0, len(x), ROWS):
        part = slice(start, start + ROWS)
        left, right = gradient[part].t(), x[part].t()
        if total is None:
            total = operators._linear_pointwise(left, right, None, "none", [], "")
        else:
            total = operators._linear_pointwise.binary(left, total, right, None, "add")
    return total if total is not None else gradient.t() @ x
