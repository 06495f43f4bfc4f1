"""A line that says why the first search of an installation takes longer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Timer

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
