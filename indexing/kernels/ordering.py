"""Copies, sorts and selects within kernels, each compiled once for all that call it.

numba compiles its own ``target[:] = source``, ``np.sort`` and ``np.partition`` anew for every
kernel, the texts of their errors included, which takes seconds (docs/experiments.md).
"""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
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
