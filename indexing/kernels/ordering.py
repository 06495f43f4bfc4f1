"""Copies, sorts, selects and a heap of hits within kernels, each compiled once for all callers.

numba compiles its own ``target[:] = source``, ``np.sort`` and ``np.partition`` anew for every
kernel, the texts of their errors included, which takes seconds (docs/experiments.md).
"""

# mypy: disable-error-code="arg-type, assignment, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def put(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Write an array's values to the beginning of another, which is not shorter."""
    for i in range(len(source)):
        target[i] = source[i]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def ascending(keys: NDArray[Any]) -> NDArray[Any]:
    """Return the keys in ascending order."""
    return np.sort(keys)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def select_largest(keys: NDArray[Any], k: int) -> Any:
    """Bring the ``k`` largest keys to the beginning, in any order; return the smallest of them.

    Hoare's selection with the median of three; ``k`` is from 1 to the number of keys.
    """
    low, high, last = 0, len(keys) - 1, k - 1
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] > keys[low]:
            keys[low], keys[middle] = keys[middle], keys[low]
        if keys[high] > keys[low]:
            keys[low], keys[high] = keys[high], keys[low]
        if keys[high] > keys[middle]:
            keys[middle], keys[high] = keys[high], keys[middle]
        pivot = keys[middle]
        left, right = low, high
        while left <= right:
            while keys[left] > pivot:
                left += 1
            while keys[right] < pivot:
                right -= 1
            if left <= right:
                keys[left], keys[right] = keys[right], keys[left]
                left += 1
                right -= 1
        if last <= right:
            high = right
        elif last >= left:
            low = left
        else:
            break
    return keys[last]


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
