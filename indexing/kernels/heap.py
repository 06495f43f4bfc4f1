"""A min-heap of the best hits: one int64 key orders them by score, then by row."""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sluice.indexing.kernels.ordering import ascending

Keys = NDArray[np.int64]

# A key holds the score's bits, then the row reversed: a greater key is a better hit, and of equal
# scores the lower row. The bits of a float32 that is not negative, read as an integer, are in the
# order of the floats.
ROW_MASK = (1 << 32) - 1
LARGEST_BITS = np.int32(0x7F7FFFFF)  # of the largest float32; an overflow counts as it
_ALL_BUT_SIGN = np.int32(0x7FFFFFFF)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def key_of(bits: int, row: int) -> int:
    """Return the key of a score's bits and a row."""
    return (np.int64(bits) << 32) | (ROW_MASK - row)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def row_of(key: int) -> int:
    """Return the row of a key."""
    return ROW_MASK - (key & ROW_MASK)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def score_of(key: int) -> Any:
    """Return the float32 whose bits are the key's upper half."""
    return np.int32(key >> 32).view(np.float32)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def bits_of(score: np.float32) -> Any:
    """Return the bits of a float32 as an integer."""
    return np.float32(score).view(np.int32)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def offer(heap: Keys, size: int, key: int) -> int:
    """Add a key, or replace the smallest of a full heap by a greater one; return the new size."""
    if size < len(heap):
        place = size
        while place > 0:
            parent = (place - 1) >> 1
            if heap[parent] <= key:
                break
            heap[place] = heap[parent]
            place = parent
        heap[place] = key
        return size + 1
    if key > heap[0]:
        _sink(heap, size, key)
    return size


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _sink(heap: Keys, size: int, key: int) -> None:
    """Replace the smallest key."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = key


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
        keys = ascending(heaps[line, :size])
        for place in range(size):
            key = keys[size - 1 - place]
            rows[line, place] = row_of(key)
            scores[line, place] = signed_score(key)
