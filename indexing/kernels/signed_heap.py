"""Heaps of one query's best hits where scores may be negative: keys as in ``heap``."""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sluice.indexing.kernels.heap import ROW_MASK, row_of

_ALL_BUT_SIGN = np.int32(0x7FFFFFFF)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def signed_key(score: np.float32, row: int) -> Any:
    """Return a key that orders hits by score, then by row reversed; -0.0 counts as 0.0."""
    bits = np.float32(score + np.float32(0.0)).view(np.int32)
    # The bits of negative floats fall as the floats rise: all but the sign is turned over.
    bits = np.int32(bits ^ ((bits >> np.int32(31)) & _ALL_BUT_SIGN))
    return (np.int64(bits) << 32) | (ROW_MASK - row)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def signed_score(key: int) -> Any:
    """Return the float32 score of a key."""
    bits = np.int32(key >> 32)
    return np.int32(bits ^ ((bits >> np.int32(31)) & _ALL_BUT_SIGN)).view(np.float32)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def read_heaps(
    heaps: NDArray[np.int64],
    sizes: NDArray[np.int64],
    rows: NDArray[np.int64],
    scores: NDArray[np.float32],
) -> None:
    """Write each heap's rows and scores ``[n, k]``, best first; places left over stay."""
    for line in range(len(heaps)):
        size = sizes[line]
        keys = np.sort(heaps[line, :size])
        for place in range(size):
            key = keys[size - 1 - place]
            rows[line, place] = row_of(key)
            scores[line, place] = signed_score(key)
