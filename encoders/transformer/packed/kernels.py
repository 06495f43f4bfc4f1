"""Kernels of a packed pass that torch has not, or not as fast: each for the thread that calls it.

A number's bits, read as a whole number, are in the numbers' order once those below 0 are turned
(``_turned``): so the largest of a row is found many at a time, as of floats it is not.
"""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
# numba types the kernels; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

_ANY_ORDER = {"reassoc", "contract", "arcp", "nsz", "afn"}
_COLUMNS = 384  # of a product at a time: what is added to each row of them stays in the cache


@njit(inline="always")  # type: ignore[untyped-decorator]
def _turned(bits: int) -> int:
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@njit(cache=True, nogil=True, fastmath=_ANY_ORDER, error_model="numpy")  # type: ignore[untyped-decorator]
def softmax_halves(rows: NDArray[np.uint16], scale: float) -> None:
    """Replace each row of bfloat16 numbers ``[n, length]``, given as their bits, by its softmax.

    They are multiplied by ``scale``, above 0, first.
    """
    length = rows.shape[1]
    values = np.empty(length, np.float32)
    bits = values.view(np.int32)
    single = np.empty(1, np.int32)
    as_float = single.view(np.float32)
    log2e = np.float32(1.44269504 * scale)
    for row in range(len(rows)):
        own = rows[row]
        most = np.int32(-(2**31))
        for i in range(length):
            bits[i] = np.int32(own[i]) << np.int32(16)
            most = max(most, _turned(bits[i]))
        single[0] = _turned(most)
        top = as_float[0] * log2e
        total = np.float32(0)
        for i in range(length):
            # 2^power for powers up to 0: that of the nearest whole number, and a polynomial.
            power = max(values[i] * log2e - top, np.float32(-126))
            whole = np.int32(power - np.float32(0.5))
            rest = power - np.float32(whole)
            share = np.float32(1.3333558e-3)
            share = share * rest + np.float32(9.6181291e-3)
            share = share * rest + np.float32(5.5504109e-2)
            share = share * rest + np.float32(2.4022651e-1)
            share = share * rest + np.float32(6.9314718e-1)
            values[i] = share * rest + np.float32(1)
            bits[i] += whole << np.int32(23)
            total += values[i]
        inverse = np.float32(1) / total
        for i in range(length):
            values[i] *= inverse
        for i in range(length):
            own[i] = np.uint16((bits[i] + np.int32(0x8000)) >> np.int32(16))


@njit(cache=True, nogil=True, fastmath=_ANY_ORDER, error_model="numpy")  # type: ignore[untyped-decorator]
def add_norm_halves(
    states: NDArray[np.float32],
    branch: NDArray[np.uint16],
    weight: NDArray[np.float32],
    bias: NDArray[np.float32],
    eps: float,
    halves: NDArray[np.uint16],
) -> None:
    """Add ``branch``, bits of bfloat16 ``[n, size]``, to each row of states, and norm the sum.

    In place; ``halves`` becomes the same in bfloat16, to the nearest, ties to even.
    """
    size = states.shape[1]
    total = np.empty(size, np.float32)
    bits = total.view(np.int32)
    share = np.float32(1) / np.float32(size)
    for row in range(len(states)):
        own, added, into = states[row], branch[row], halves[row]
        for i in range(size):
            bits[i] = np.int32(added[i]) << np.int32(16)
        mean = np.float32(0)
        for i in range(size):
            total[i] += own[i]
            mean += total[i]
        mean *= share
        variance = np.float32(0)
        for i in range(size):
            total[i] -= mean
            variance += total[i] * total[i]
        scale = np.float32(1) / np.sqrt(variance * share + np.float32(eps))
        for i in range(size):
            total[i] = total[i] * scale * weight[i] + bias[i]
            own[i] = total[i]
        for i in range(size):
            odd = (bits[i] >> np.int32(16)) & np.int32(1)
            into[i] = np.uint16((bits[i] + np.int32(0x7FFF) + odd) >> np.int32(16))


@njit(cache=True, nogil=True, fastmath=_ANY_ORDER, error_model="numpy")  # type: ignore[untyped-decorator]
def code_rows(
    x: NDArray[np.float32],
    apart: NDArray[np.int64],
    codes: NDArray[np.uint8],
    scales: NDArray[np.float32],
    zeros: NDArray[np.float32],
    kept: NDArray[np.float32],
) -> None:
    """Code each row of ``x``: ``x = scale * code - zero``; what stands at ``apart`` is kept."""
    half, largest = np.float32(0.5), np.float32(255)
    own = np.empty(x.shape[1], np.float32)
    bits = own.view(np.int32)
    ends = np.empty(2, np.int32)
    as_floats = ends.view(np.float32)
    for row in range(len(x)):
        values, into = x[row], codes[row]
        for i in range(len(own)):
            own[i] = values[i]
        for i in range(len(apart)):
            kept[row, i] = values[apart[i]]
            own[apart[i]] = 0
        least, most = np.int32(0), np.int32(0)
        for i in range(len(own)):
            turned = _turned(bits[i])
            least = min(least, turned)
            most = max(most, turned)
        ends[0], ends[1] = _turned(least), most
        scale = (as_floats[1] - as_floats[0]) / largest
        if not scale > 0:
            scale = np.float32(1)
        inverse = np.float32(1) / scale
        zero = np.float32(np.int32(half - as_floats[0] * inverse))
        scales[row], zeros[row] = scale, zero * scale
        for i in range(len(own)):
            code = min(max(own[i] * inverse + (zero + half), np.float32(0)), largest)
            into[i] = np.uint8(np.int32(code))


@njit(cache=True, nogil=True, fastmath=_ANY_ORDER, error_model="numpy")  # type: ignore[untyped-decorator]
def finish_products(
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
    for start in range(0, products.shape[1], _COLUMNS):
        part = slice(start, min(start + _COLUMNS, products.shape[1]))
        own_sums, own_bias = sums[part], bias[part]
        one, two, three, four = (
            weights[0, part],
            weights[1, part],
            weights[2, part],
            weights[3, part],
        )
        for row in range(len(products)):
            values, scale, zero = products[row, part], scales[row], zeros[row]
            first, second, third, fourth = kept[row]
            for i in range(len(values)):
                value = values[i] * scale - zero * own_sums[i] + own_bias[i]
                value += first * one[i] + second * two[i]
                values[i] = value + third * three[i] + fourth * four[i]
            if gelu:
                for i in range(len(values)):
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


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def draw_kept(kept: NDArray[np.uint8], dropped: int, first: int, second: int) -> None:
    """Fill with 1, or with 0 by a chance of ``dropped`` in 2^32, from two seeds of 32 bits.

    Each place is a function of itself and the seeds: a 32-bit mix of multiplications and shifts
    (Wellons, "Prospecting for Hash Functions", 2018), which a processor does for many at a time.
    """
    threshold, seed, other = np.uint32(dropped), np.uint32(first), np.uint32(second)
    for i in range(len(kept)):
        x = np.uint32(np.uint32(i) * np.uint32(0x9E3779B9) + seed)
        x = np.uint32((x ^ (x >> np.uint32(16)) ^ other) * np.uint32(0x21F0AAAD))
        x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0xD35A2D97))
        kept[i] = np.uint8((x ^ (x >> np.uint32(15))) >= threshold)
