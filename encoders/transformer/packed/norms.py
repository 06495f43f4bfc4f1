"""The norms of a packed transformer."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.transformer.packed.attention import bits_of

# Those that multiply by their weight, and those that multiply by 1 more than it.
_ROOT_MEAN_SQUARES = {
    "T5LayerNorm": 0.0, "LlamaRMSNorm": 0.0, "MistralRMSNorm": 0.0, "Qwen2RMSNorm": 0.0,
    "Qwen3RMSNorm": 0.0, "Gemma3RMSNorm": 1.0,
}  # fmt: skip


class Norm(Protocol):
    """A norm over the last dimension."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``x`` ``[..., size]`` normalised, float32."""
        ...


class LayerNorm:
    """Layer norm (Ba et al., 2016, arXiv 1607.06450)."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        self._shape, self._eps = norm.normalized_shape, norm.eps
        self._weight, self._bias = (
            None if part is None else part.detach().float() for part in (norm.weight, norm.bias)
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``x`` ``[..., size]`` normalised."""
        return functional.layer_norm(x.float(), self._shape, self._weight, self._bias, self._eps)

    @property
    def adds_halves(self) -> bool:
        """Whether ``add_halves`` can be called: for norms of rows with a weight and a bias."""
        return None not in (self._weight, self._bias) and len(self._shape) == 1

    def add_halves(self, states: Tensor, branch: Tensor) -> Tensor:
        """Add bfloat16 ``[n, size]`` to float32 states and norm them, in place; in bfloat16 too.

        Three passes over memory are one: 5 times as fast as torch's, which takes new buffers.
        """
        from sluice.encoders.transformer.packed.kernels import add_norm_halves  # loads numba

        assert self._weight is not None
        assert self._bias is not None
        ready = torch.empty_like(branch)
        add_norm_halves(
            states.numpy(), bits_of(branch), self._weight.numpy(), self._bias.numpy(), self._eps,
            bits_of(ready),
        )  # fmt: skip
        return ready


class RootMeanSquare:
    """``x / sqrt(mean(x^2) + eps) * weight`` (Zhang and Sennrich, 2019, arXiv 1910.07467)."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight, self._eps = weight, eps

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``x`` ``[..., size]`` normalised."""
        x = x.float()
        # Of the ways to sum squares this is the fastest by far: one pass, nothing in between.
        squares: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        return (x * squares.div_(x.shape[-1]).add_(self._eps).rsqrt_()).mul_(self._weight)


def norm_of(module: Any) -> Norm | None:
    """Return what a norm module of ``transformers`` or torch computes; None for no norm.

    Raises ``TypeError`` for one that is not known here.
    """
    if module is None or type(module) is nn.Identity:
        return None
    if type(module) is nn.LayerNorm:
        return LayerNorm(module)
    name = type(module).__name__
    if name not in _ROOT_MEAN_SQUARES:
        raise TypeError(f"unknown norm {name}")
    eps = getattr(module, "variance_epsilon", None)
    weight = module.weight.detach().float() + _ROOT_MEAN_SQUARES[name]
    return RootMeanSquare(weight, module.eps if eps is None else eps)


class Norms(NamedTuple):
    """The norms around one half of a layer: ``after(x + inside(half(before(x))))``."""

    before: Norm | None = None
    inside: Norm | None = None
    after: Norm | None = None
