"""Helpers for calling compiled kernels: whether to, writable arrays, a notice of compiling."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Timer
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.progress import progress_target

log = logging.getLogger("sluice")

PATIENCE = 1.5  # seconds: loading compiled kernels from numba's cache takes a small part of that
# Seconds of a process's work that numpy does before kernels are loaded, which takes as long; in a
# new environment they are compiled first, for up to half a minute.
WITHOUT_KERNELS = 0.5
_logged = False
_done_in_numpy = 0.0  # seconds, estimated


def kernels_loaded() -> bool:
    """Return whether the compiler of the kernels is loaded."""
    return "numba" in sys.modules


def numpy_suffices(seconds: float) -> bool:
    """Return whether work that takes numpy so many seconds is to be done without the kernels.

    All such work of the process counts: much of it pays for loading them. Results are the same.
    """
    global _done_in_numpy
    if kernels_loaded():
        return False
    _done_in_numpy += seconds
    return _done_in_numpy <= WITHOUT_KERNELS


def notice_once() -> AbstractContextManager[None]:
    """Log a line if the first call of kernels in this process takes long: they are compiled."""
    return nullcontext() if _logged else _patient()


@contextmanager
def _patient() -> Iterator[None]:
    global _logged
    _logged = True
    timer = Timer(PATIENCE, _say_compiling)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say_compiling() -> None:
    if progress_target() is False:
        return
    # Where a program has set up no logging, Python shows warnings alone, and half a minute of
    # silence looks like a hang.
    level = logging.INFO if log.hasHandlers() else logging.WARNING
    log.log(level, "compiling the search kernels, once per installation: numba caches them")


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
