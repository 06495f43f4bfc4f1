"""Calls of compiled kernels: whether to, in how many threads, and a notice of compiling."""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from threading import Timer
from typing import Any, TypeVar

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
    return nullcontext() if _logged else notice()


@contextmanager
def notice() -> Iterator[None]:
    """Log a line if the block takes long, which calls kernels for the first time."""
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


Task = Callable[[int, int], None]
Item = TypeVar("Item")
Result = TypeVar("Result")


def in_parallel(task: Task, count: int, least: int = 1) -> None:
    """Call ``task(first, last)`` over parts of ``range(count)``, on ``NUMBA_NUM_THREADS`` threads.

    No part is smaller than ``least``; the caller's thread takes part. Any number of threads may
    call this at once, but no task may.
    """
    parts = count // max(least, 1)
    if parts < 2 or (threads := thread_count()) < 2:
        task(0, count)
        return
    parts = min(threads, parts)
    edges = [count * part // parts for part in range(parts + 1)]
    pool = _pool(os.getpid(), threads)
    others = [pool.submit(task, *edges[part : part + 2]) for part in range(1, parts)]
    try:
        task(*edges[:2])
    finally:
        finish(others)


def in_pieces(task: Task, count: int, pieces: int) -> None:
    """Call ``task(first, last)`` over parts of ``range(count)``, ``pieces`` for each thread.

    For parts of uneven cost: a thread that is done with one takes the next. Like ``in_parallel``,
    it may be called by any number of threads at once, but by no task.
    """
    threads = thread_count()
    if threads == 1 or count < 2:
        task(0, count)
        return
    step = -(-count // (threads * pieces))
    pool = _pool(os.getpid(), threads)
    finish([pool.submit(task, at, min(at + step, count)) for at in range(0, count, step)])


def thread_count() -> int:
    """Return how many threads compiled work may use, ``NUMBA_NUM_THREADS``; numpy's has one."""
    if not kernels_loaded():
        return 1
    from numba import config

    return int(config.NUMBA_NUM_THREADS)


def build_pool() -> ThreadPoolExecutor:
    """Return a new pool for building one index; the caller closes it."""
    return ThreadPoolExecutor(thread_count(), thread_name_prefix="build")


def in_order(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield the results in the order of the items, computed in a pool of their own.

    At most as many results wait as there are threads, which bounds the memory.
    """
    threads = thread_count()
    if threads == 1:
        yield from map(function, items)
        return
    with build_pool() as pool:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def finish(futures: Iterable[Future[Any]]) -> None:
    """Wait for all, so that none still writes where nobody reads; then raise what one raised."""
    futures = list(futures)
    wait(futures)
    for future in futures:
        future.result()


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Return the pool of one process: a forked child has its parent's pool, but not its threads."""
    return ThreadPoolExecutor(threads, thread_name_prefix="search")
