"""What calls of compiled kernels need: writable arrays, and a notice while they compile."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Timer
from typing import Any

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger("sluice")

PATIENCE = 1.5  # seconds: loading compiled kernels from numba's cache takes a small part of that
_said = False


def said_once() -> AbstractContextManager[None]:
    """Log a line if the first work of the kernels in this process takes long: they are compiled."""
    return nullcontext() if _said else _patient()


@contextmanager
def _patient() -> Iterator[None]:
    global _said
    _said = True
    timer = Timer(
        PATIENCE,
        log.info,
        ("compiling the search kernels; numba caches them, this happens once",),
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
