"""Runs compiled work in several threads, where the processor can; kernels hold no lock.

Searches share one pool. What builds an index opens a pool of its own (``build_pool``): its tasks
take seconds, and searches would have to wait for them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from typing import Any, TypeVar

from sluice.indexing.kernels.calls import kernels_loaded

Task = Callable[[int, int], None]
Item = TypeVar("Item")
Result = TypeVar("Result")


def in_parallel(task: Task, count: int, least: int = 1) -> None:
    """Call ``task(first, last)`` over parts of ``range(count)``, on ``NUMBA_NUM_THREADS`` threads.

    No part is smaller than ``least``; the caller's thread takes part. Any number of threads may
    call this at once, but no task may.
    """
    threads = thread_count()
    parts = min(threads, count // max(least, 1))
    if parts < 2:
        task(0, count)
        return
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
