"""Products of a packed transformer in integers of 8 bits, for processors that multiply those fast.

Weights are coded for each output, states for each token, from their lowest to their highest number.
A few inputs are far larger than the others and would take all precision from them: they stay in
float32 (Dettmers et al., 2022, arXiv 2208.07339).
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.encoders.transformer.packed.kernels import code_rows, finish_products

APART = 4  # inputs that stay in float32: with 16 of them, vectors are hardly any nearer


class ByteProduct:
    """``x W^T + b`` for inference, ``x`` ``[n, in]`` float32, on oneDNN's product of bytes.

    The first rows it meets say which inputs stay in float32: a model's probe texts. ``gelu`` is
    done on the way.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, gelu: bool = False) -> None:
        self._weight = weight.detach().float()
        bias = weight.new_zeros(len(weight)) if bias is None else bias.detach()
        self._bias = bias.float().numpy()
        self._gelu = gelu
        self._apart: NDArray[np.int64] | None = None

    def rows(self, chosen: slice) -> ByteProduct:
        """Return the product of some of the outputs, with the same inputs in float32."""
        part = ByteProduct(self._weight[chosen], torch.from_numpy(self._bias[chosen]))
        if self._apart is not None:
            part._settle(self._apart)
        return part

    def _settle(self, apart: NDArray[np.int64]) -> NDArray[np.int64]:
        self._apart = apart
        self._weights_apart = np.zeros((APART, len(self._weight)), np.float32)
        self._weights_apart[: len(apart)] = self._weight[:, apart].T
        rest = self._weight.index_fill(1, torch.from_numpy(apart), 0.0)
        self._scales = rest.abs().amax(dim=1).clamp_(min=1e-12).div_(127)
        codes = rest.div_(self._scales[:, None]).round_()
        self._sums = (codes.sum(dim=1) * self._scales).numpy()
        self._zeros = torch.zeros(len(codes), dtype=torch.int32)
        self._codes = torch.ops.onednn.qlinear_prepack(codes.to(torch.int8), None)
        return apart

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``[n, out]`` float32."""
        apart = self._apart
        if apart is None:
            apart = x.abs().amax(dim=0).topk(min(APART, x.shape[1])).indices.numpy()
            apart = self._settle(apart)
        codes = torch.empty(x.shape, dtype=torch.uint8)
        scales, zeros = np.empty((2, len(x)), np.float32)
        kept = np.zeros((len(x), APART), np.float32)
        code_rows(x.numpy(), apart, codes.numpy(), scales, zeros, kept)
        out: Tensor = torch.ops.onednn.qlinear_pointwise(
            codes, 1.0, 0, self._codes, self._scales, self._zeros, None, 1.0, 0, torch.float32,
            "none", [], "none",
        )  # fmt: skip
        finish_products(
            out.numpy(), scales, zeros, self._sums, self._bias, kept, self._weights_apart,
            self._gelu,
        )  # fmt: skip
        return out


@functools.cache
def multiplies_bytes() -> bool:
    """Return whether torch has oneDNN's product of bytes, and it is right; it is not public."""
    generator = torch.Generator().manual_seed(13)
    weight, x = (torch.randn(shape, generator=generator) for shape in ((32, 64), (7, 64)))
    bias = torch.randn(32, generator=generator)
    expected = x @ weight.T + bias
    try:
        actual = ByteProduct(weight, bias)(x)
    except (RuntimeError, NotImplementedError, AttributeError, TypeError):
        return False
    return bool((actual - expected).norm() < 0.02 * expected.norm())
