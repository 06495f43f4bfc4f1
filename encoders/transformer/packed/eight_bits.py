"""Products of a packed transformer in integers of 8 bits, for processors that multiply those fast.

Weights are coded for each output, states for each token, from their lowest to their highest number.
A few inputs are far larger than the others and would take all precision from them: they stay in
float32 (Dettmers et al., 2022, arXiv 2208.07339).
"""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
# numba types the kernels; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

import functools

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

APART = 4  # inputs that stay in float32: with 16 of them, vectors are hardly any nearer
_ANY_ORDER = {"reassoc", "contract", "arcp", "nsz", "afn"}


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
        part._settle(self._apart)
        return part

    def _settle(self, apart: NDArray[np.int64]) -> None:
        self._apart = apart
        self._weights_apart = self._weight[:, apart].T.contiguous().numpy()
        rest = self._weight.index_fill(1, torch.from_numpy(apart), 0.0)
        self._scales = rest.abs().amax(dim=1).clamp_(min=1e-12).div_(127)
        codes = rest.div_(self._scales[:, None]).round_()
        self._sums = (codes.sum(dim=1) * self._scales).numpy()
        self._zeros = torch.zeros(len(codes), dtype=torch.int32)
        self._codes = torch.ops.onednn.qlinear_prepack(codes.to(torch.int8), None)

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``[n, out]`` float32."""
        if self._apart is None:
            self._settle(x.abs().amax(dim=0).topk(min(APART, x.shape[1])).indices.numpy())
        codes = torch.empty(x.shape, dtype=torch.uint8)
        scales, zeros = np.empty((2, len(x)), np.float32)
        apart = np.empty((len(x), len(self._apart)), np.float32)
        _code(x.numpy(), self._apart, codes.numpy(), scales, zeros, apart)
        out: Tensor = torch.ops.onednn.qlinear_pointwise(
            codes, 1.0, 0, self._codes, self._scales, self._zeros, None, 1.0, 0, torch.float32,
            "none", [], "none",
        )  # fmt: skip
        _finish(
            out.numpy(), scales, zeros, self._sums, self._bias, apart, self._weights_apart,
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


@njit(cache=True, nogil=True, fastmath=_ANY_ORDER, error_model="numpy")  # type: ignore[untyped-decorator]
def _code(
    x: NDArray[np.float32],
    apart: NDArray[np.int64],
    codes: NDArray[np.uint8],
    scales: NDArray[np.float32],
    zeros: NDArray[np.float32],
    kept: NDArray[np.float32],
) -> None:
    """Code each row of ``x``: ``x = scale * code - zero``, with exact zeros at ``apart``."""
    half, most = np.float32(0.5), np.float32(255)
    own = np.empty(x.shape[1], np.float32)
    for row in range(len(x)):
        values, into = x[row], codes[row]
        for i in range(len(own)):
            own[i] = values[i]
        for i in range(len(apart)):
            kept[row, i] = values[apart[i]]
            own[apart[i]] = 0
        lowest, highest = np.float32(0), np.float32(0)
        for i in range(len(own)):
            lowest = min(lowest, own[i])
            highest = max(highest, own[i])
        scale = (highest - lowest) / most
        if not scale > 0:
            scale = np.float32(1)
        inverse = np.float32(1) / scale
        zero = np.float32(np.int32(half - lowest * inverse))
        scales[row], zeros[row] = scale, zero * scale
        for i in range(len(own)):
            code = min(max(own[i] * inverse + (zero + half), np.float32(0)), most)
            into[i] = np.uint8(np.int32(code))


@njit(cache=True, nogil=True, fastmath=_ANY_ORDER, error_model="numpy")  # type: ignore[untyped-decorator]
def _finish(
    products: NDArray[np.float32],
    scales: NDArray[np.float32],
    zeros: NDArray[np.float32],
    sums: NDArray[np.float32],
    bias: NDArray[np.float32],
    kept: NDArray[np.float32],
    weights: NDArray[np.float32],
    gelu: bool,
) -> None:
    """Make products of codes those of the numbers, in place, and add what was kept apart."""
    count = products.shape[1]
    for row in range(len(products)):
        values, scale, zero = products[row], scales[row], zeros[row]
        first, second, third, fourth = kept[row]
        for i in range(count):
            value = values[i] * scale - zero * sums[i] + bias[i]
            value += first * weights[0, i] + second * weights[1, i]
            value += third * weights[2, i] + fourth * weights[3, i]
            values[i] = value
        if gelu:
            for i in range(count):
                values[i] = _gelu(values[i])


@njit(inline="always")  # type: ignore[untyped-decorator]
def _gelu(x: float) -> float:
    """Return GELU, with erf as a quotient of polynomials that is good to float32's last bits."""
    z = min(max(x * np.float32(0.70710678), np.float32(-4)), np.float32(4))
    square = z * z
    above = np.float32(-2.72614225801306e-10)
    above = above * square + np.float32(2.77068142495902e-08)
    above = above * square + np.float32(-2.10102402082508e-06)
    above = above * square + np.float32(-5.69250639462346e-05)
    above = above * square + np.float32(-7.34990630326855e-04)
    above = above * square + np.float32(-2.95459980854025e-03)
    above = above * square + np.float32(-1.60960333262415e-02)
    below = np.float32(-1.45660718464996e-05)
    below = below * square + np.float32(-2.13374055278905e-04)
    below = below * square + np.float32(-1.68282697438203e-03)
    below = below * square + np.float32(-7.37332916720468e-03)
    below = below * square + np.float32(-1.42647390514189e-02)
    return np.float32(0.5) * x * (np.float32(1) + z * above / below)
