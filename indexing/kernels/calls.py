"""Helpers for calling compiled kernels: writable arrays, and a notice while they compile."""

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
_logged = False


def notice_once() -> AbstractContextManager[None]:
    """Log a line if the first call of kernels in this process takes long: they are compiled."""
    return nullcontext() if _logged else _patient()


@contextmanager
def _patient() -> Iterator[None]:
    global _logged
    _logged = True
    timer = Timer(
        PATIENCE,
        log.info,
        ("compiling the search kernels, once per installation: numba caches them",),
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
    """Return an array on the same memory that is marked writable; nothing may write to it.

    torch warns of read-only memory, and numba would compile every kernel once more for it.
    """
    return array if array.flags.writeable else np.asarray(_Lent(array))
