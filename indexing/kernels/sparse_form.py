"""Checks in one pass whether a CSR matrix is as an index needs it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

GOOD, OTHER = 0, 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def inspect(
    starts: NDArray[Any], columns: NDArray[Any], weights: NDArray[np.float32], width: int
) -> int:
    """Return ``GOOD`` for sorted, distinct columns below ``width`` and finite weights above 0.

    ``OTHER`` for everything else: ``checked_sparse`` then repairs it, or reports what is wrong.
    """
    if len(starts) == 0 or starts[0] != 0 or starts[-1] != len(columns):
        return OTHER
    if len(weights) != len(columns):
        return OTHER
    for row in range(len(starts) - 1):
        first, last = starts[row], starts[row + 1]
        if last < first or last > len(columns):
            return OTHER
        before = np.int64(-1)
        for place in range(first, last):
            column = np.int64(columns[place])
            weight = weights[place]
            if column <= before or column >= width or not (0 < weight <= np.float32(3.4028235e38)):
                return OTHER
            before = column
    return GOOD
