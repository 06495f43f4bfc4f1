"""Float32 vectors rounded to bfloat16 or 8-bit integers, with what the rounding lost."""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

LEVELS = 127  # of an 8-bit code, to either side of zero
SMALLEST_NORM = 1e-20  # shorter vectors' losses are not measured: nothing is promised of them
LARGEST_NORM = 1e20  # nor those of longer ones
# The sums below may be reordered and fused; nothing is assumed of NaN and infinities.
ANY_ORDER = {"reassoc", "contract", "nsz"}
_LAST, _ONE, _SIXTEEN = np.uint32(0x7FFF), np.uint32(1), np.uint32(16)
_UPPER = np.uint32(0xFFFF0000)


# Arrays and places in them are handed down, not slices: each slice of numba's is counted by an
# atomic instruction.


@njit(cache=True, nogil=True, fastmath=ANY_ORDER)  # type: ignore[untyped-decorator]
def round_to_bfloat16(
    vectors: Any,
    place: int,
    norm: float,
    normalise: bool,
    codes: Any,
    at: int,
) -> Any:
    """Write one vector's code: the bits of the nearest bfloat16, ties to even; return the loss.

    The loss is at least ``|v - v'| / |v|``.
    """
    known = SMALLEST_NORM <= norm <= LARGEST_NORM
    shrink = np.float32(1 / norm) if known else np.float32(1)
    factor = shrink if normalise else np.float32(1)
    rest = np.float32(1) if normalise else shrink
    total = np.float32(0)
    width = vectors.shape[1]
    for i in range(width):
        value = np.float32(vectors[place, i] * factor)
        word = value.view(np.uint32)
        word = np.uint32(word + _LAST + ((word >> _SIXTEEN) & _ONE))
        codes[at, i] = np.uint16(word >> _SIXTEEN)
        lost = (value - np.uint32(word & _UPPER).view(np.float32)) * rest
        total += lost * lost
    if norm > 0 and not known:
        return np.float32(np.inf)
    return np.sqrt(total) * np.float32(1 + (width + 8) * 2.0**-23) + np.float32(2.0**-21)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def round_all_to_bfloat16(
    vectors: NDArray[np.float32],
    norms: NDArray[np.float64],
    normalise: bool,
    first: int,
    last: int,
    codes: NDArray[np.uint16],
    losses: NDArray[np.float32],
) -> None:
    """Write the codes and losses of vectors ``first`` to ``last``."""
    for at in range(first, last):
        losses[at] = round_to_bfloat16(vectors, at, norms[at], normalise, codes, at)


@njit(cache=True, nogil=True, fastmath=ANY_ORDER)  # type: ignore[untyped-decorator]
def round_all_to_int8(
    vectors: NDArray[np.float32],
    norms: NDArray[np.float64],
    normalise: bool,
    first: int,
    last: int,
    codes: NDArray[np.int8],
    scales: NDArray[np.float32],
    losses: NDArray[np.float32],
) -> None:
    """Write codes from -127 to 127, each vector's scale, and losses as above."""
    width = vectors.shape[1]
    for at in range(first, last):
        vector, code, norm = vectors[at], codes[at], norms[at]
        known = SMALLEST_NORM <= norm <= LARGEST_NORM
        shrink = np.float32(1 / norm) if known else np.float32(1)
        factor = shrink if normalise else np.float32(1)
        largest = np.float32(0)
        for i in range(width):
            largest = max(largest, abs(vector[i] * factor))
        scale = largest / np.float32(LEVELS)
        inverse = np.float32(LEVELS) / largest if known else np.float32(0)
        rest = np.float32(1) if normalise else shrink
        total = np.float32(0)
        for i in range(width):
            value = vector[i] * factor
            whole = np.rint(value * inverse)
            code[i] = np.int8(whole)
            lost = (value - whole * scale) * rest
            total += lost * lost
        scales[at] = scale if known else np.float32(0)
        losses[at] = np.sqrt(total) * np.float32(1 + (width + 8) * 2.0**-23) + np.float32(2.0**-21)
        if norm > 0 and not known:
            losses[at] = np.inf


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def widen(codes: Any, place: int, room: Any, at: int) -> None:
    """Write one vector's codes (int8, or bfloat16 as uint16) as the float32 numbers they are."""
    if codes.itemsize == 2:
        for i in range(codes.shape[1]):
            room[at, i] = np.uint32(np.uint32(codes[place, i]) << _SIXTEEN).view(np.float32)
    else:
        for i in range(codes.shape[1]):
            room[at, i] = np.float32(codes[place, i])


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def whole_to_bfloat16(codes: Any, place: int, room: Any, at: int) -> None:
    """Write one vector's 8-bit codes as bfloat16, which holds them exactly."""
    for i in range(codes.shape[1]):
        room[at, i] = np.uint16(np.float32(codes[place, i]).view(np.uint32) >> _SIXTEEN)
