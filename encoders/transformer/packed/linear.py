"""Linear layers with packed weights, by oneDNN's kernels if this torch has them, else by torch's.

On CPUs that MKL does not tune for, oneDNN's float32 product is up to twice as fast as the one
behind ``torch.nn.functional.linear``; its bfloat16 product gains about a fifth from weights that
are laid out for it once. Activation and residual sum are done while the result is in the cache.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Activation = Literal["none", "gelu", "gelu_tanh", "relu", "silu"]

_POINTWISE: dict[Activation, tuple[str, str]] = {
    "none": ("none", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""), "silu": ("swish", ""),
}  # fmt: skip
ROWS = 4096  # rows of input the layout is chosen for; others work too


class PackedLinear:
    """``activation(x W^T + b)`` for inference, ``x`` ``[n, in]`` in ``dtype``.

    The weights are copied: a later change of the layer they came from is not seen.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, *,
        activation: Activation = "none",
    ) -> None:  # fmt: skip
        self._weight = weight.detach().to(dtype, copy=True).contiguous()
        self._bias = None if bias is None else bias.detach().to(dtype, copy=True)
        self._activation: Activation = activation
        self._onednn = onednn(weight.device.type, dtype)
        if self._onednn is not None:
            self._weight = self._onednn._reorder_linear_weight(self._weight, ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``[n, out]``."""
        if self._onednn is not None:
            kind, algorithm = _POINTWISE[self._activation]
            out: Tensor = self._onednn._linear_pointwise(
                x, self._weight, self._bias, kind, [], algorithm
            )
            return out
        return _activated(functional.linear(x, self._weight, self._bias), self._activation)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return ``residual + x W^T + b``, of a layer without activation."""
        if self._onednn is not None:
            out: Tensor = self._onednn._linear_pointwise.binary(
                x, residual, self._weight, self._bias, "add"
            )
            return out
        return functional.linear(x, self._weight, self._bias).add_(residual)

    def multiplied_with(self, gate: Tensor, x: Tensor) -> Tensor:
        """Return ``gate * (x W^T + b)``, of a layer without activation."""
        if self._onednn is not None:
            out: Tensor = self._onednn._linear_pointwise.binary(
                x, gate, self._weight, self._bias, "mul"
            )
            return out
        return functional.linear(x, self._weight, self._bias).mul_(gate)


def _activated(x: Tensor, activation: Activation) -> Tensor:
    if activation == "gelu":
        return functional.gelu(x)
    if activation == "gelu_tanh":
        return functional.gelu(x, approximate="tanh")
    if activation == "silu":
        return functional.silu(x)
    return functional.relu(x) if activation == "relu" else x


@functools.cache
def onednn(device: str, dtype: torch.dtype) -> Any | None:
    """Return torch's oneDNN operators if present and correct; they are not a public interface."""
    if device != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    operators = torch.ops.mkldnn
    generator = torch.Generator().manual_seed(13)
    x, weight, bias = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((7, 32), (32, 32), (32,))
    )
    close = functools.partial(torch.allclose, rtol=0.05, atol=0.2 if dtype.itemsize < 4 else 1e-4)
    try:
        packed = operators._reorder_linear_weight(weight, ROWS)
        plain = functional.linear(x, weight, bias)
        right = all(
            close(
                operators._linear_pointwise(x, packed, bias, kind, [], algorithm),
                _activated(plain, activation),
            )
            for activation, (kind, algorithm) in _POINTWISE.items()
        )
        added = operators._linear_pointwise.binary(x, x, packed, bias, "add")
        multiplied = operators._linear_pointwise.binary(x, x, packed, bias, "mul")
        right = right and close(added, plain + x) and close(multiplied, plain * x)
    except (RuntimeError, NotImplementedError, AttributeError, TypeError):
        return None
    return operators if right else None


def activation_of(module: Any) -> Activation | None:
    """Return the name of an activation module or function; None for an unknown one."""
    if module is functional.gelu:
        return "gelu"
    kind = type(module)
    if isinstance(module, nn.ReLU) or module is functional.relu:
        return "relu"
    if isinstance(module, nn.SiLU) or module is functional.silu:
        return "silu"
    if isinstance(module, nn.GELU):
        return "gelu_tanh" if module.approximate == "tanh" else "gelu"
    names: dict[str, Activation] = {
        "GELUActivation": "gelu", "GELUTanh": "gelu_tanh", "NewGELUActivation": "gelu_tanh",
        "FastGELUActivation": "gelu_tanh", "SiLUActivation": "silu",
    }  # fmt: skip
    return names.get(kind.__name__) if kind.__module__ == "transformers.activations" else None
