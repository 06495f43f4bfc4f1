"""Read-only arrays handed to code that only reads, but asks for writable memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class _Lent:
    def __init__(self, array: NDArray[Any]) -> None:
        place, _ = array.__array_interface__["data"]
        self._owner = array
        self.__array_interface__ = {**array.__array_interface__, "data": (place, False)}


def lent(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array on the same memory that says it is writable; nothing may write to it.

    torch warns of read-only memory, and numba would compile every kernel once more for it.
    """
    return array if array.flags.writeable else np.asarray(_Lent(array))
