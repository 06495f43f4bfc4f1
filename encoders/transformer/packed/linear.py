"""Linear layers with packed weights, by oneDNN's kernels if this torch has them, else by torch's.

On CPUs that MKL does not tune for, oneDNN's float32 product is up to twice as fast as the one
behind ``torch.nn.functional.linear``; its bfloat16 product gains about a fifth from weights that
are laid out for it once. Activation and residual sum are done while the result is in the cache.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.model_files.weights.quantised import Codes, QuantisedLinear

Activation = Literal["none", "gelu", "gelu_tanh", "relu", "silu"]

_POINTWISE: dict[Activation, tuple[str, str]] = {
    "none": ("none", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""), "silu": ("swish", ""),
}  # fmt: skip
FEW = 32  # rows of input for which weights that are made anew are not laid out
ROWS = 4096  # rows of input the layout is chosen for; others work too


class PackedLinear:
    """``activation(x W^T + b)`` for inference, ``x`` ``[n, in]`` in ``dtype``.

    The weights are copied: a later change of the layer they came from is not seen.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, *,
        activation: Activation = "none",
    ) -> None:  # fmt: skip
        self._onednn = onednn(weight.device.type, dtype)
        self._weight = self._laid_out(weight.detach().to(dtype, copy=True).contiguous())
        self._bias = None if bias is None else bias.detach().to(dtype, copy=True)
        self._activation: Activation = activation

    def _laid_out(self, weight: Tensor) -> Tensor:
        if self._onednn is None:
            return weight
        packed: Tensor = self._onednn._reorder_linear_weight(weight, ROWS)
        return packed

    def _product(self, x: Tensor) -> tuple[Any | None, Tensor]:
        """Return oneDNN's operators, or None, and the weights as they are laid out for them."""
        return self._onednn, self._weight

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``[n, out]``."""
        operators, weight = self._product(x)
        if operators is not None:
            kind, algorithm = _POINTWISE[self._activation]
            out: Tensor = operators._linear_pointwise(x, weight, self._bias, kind, [], algorithm)
            return out
        return _activated(functional.linear(x, weight, self._bias), self._activation)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return ``residual + x W^T + b``, of a layer without activation."""
        operators, weight = self._product(x)
        if operators is not None:
            out: Tensor = operators._linear_pointwise.binary(x, residual, weight, self._bias, "add")
            return out
        return functional.linear(x, weight, self._bias).add_(residual)

    def multiplied_with(self, gate: Tensor, x: Tensor) -> Tensor:
        """Return ``gate * (x W^T + b)``, of a layer without activation."""
        operators, weight = self._product(x)
        if operators is not None:
            out: Tensor = operators._linear_pointwise.binary(x, gate, weight, self._bias, "mul")
            return out
        return functional.linear(x, weight, self._bias).mul_(gate)


class CodedLinear(PackedLinear):
    """The same of matrices in codes, of some rows of each: weights are made for each product.

    The codes are those of the layers, not copied.
    """

    def __init__(
        self, rows: Sequence[tuple[Codes, slice]], bias: Tensor | None, dtype: torch.dtype, *,
        activation: Activation = "none",
    ) -> None:  # fmt: skip
        self._rows, self._dtype = rows, dtype
        self._onednn = onednn(rows[0][0].codes.device.type, dtype)
        self._bias = None if bias is None else bias.detach().to(dtype, copy=True)
        self._activation = activation

    def _product(self, x: Tensor) -> tuple[Any | None, Tensor]:
        parts = [codes.weights(part.start, part.stop) for codes, part in self._rows]
        whole = (parts[0] if len(parts) == 1 else torch.cat(parts)).to(self._dtype).contiguous()
        return (None, whole) if len(x) <= FEW else (self._onednn, self._laid_out(whole))


def packed_linear(
    layers: Sequence[nn.Linear], dtype: torch.dtype, rows: slice = slice(None), *,
    activation: Activation = "none",
) -> PackedLinear:  # fmt: skip
    """Return the product of layers under each other, or of some rows of the whole."""
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    bias = torch.cat(biases)[rows] if biases else None
    if not all(isinstance(layer, QuantisedLinear) for layer in layers):
        weight = torch.cat([layer.weight.detach() for layer in layers])
        return PackedLinear(weight[rows], bias, dtype, activation=activation)
    first, stop, _ = rows.indices(sum(layer.out_features for layer in layers))
    chosen, start = [], 0
    for layer in layers:
        part = slice(max(first - start, 0), min(stop - start, layer.out_features))
        if part.start < part.stop and isinstance(layer, QuantisedLinear):
            chosen.append((layer.matrix, part))
        start += layer.out_features
    return CodedLinear(chosen, bias, dtype, activation=activation)


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
