"""Compiled work in several threads at once; kernels hold no lock, so plain threads do."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

Task = Callable[[int, int], None]


def in_parallel(task: Task, count: int, least: int = 1) -> None:
    """Call ``task(first, last)`` over parts of ``range(count)``, on ``NUMBA_NUM_THREADS`` threads.

    No part is smaller than ``least``; the caller's thread takes part. Any number of threads may
    call this at once.
    """
    from numba import config

    parts = min(int(config.NUMBA_NUM_THREADS), count // max(least, 1))
    if parts < 2:
        task(0, count)
        return
    edges = [count * part // parts for part in range(parts + 1)]
    pool = _pool(os.getpid(), parts)
    others = [pool.submit(task, *edges[part : part + 2]) for part in range(1, parts)]
    try:
        task(*edges[:2])
    finally:
        for other in others:
            other.result()


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Return the pool of one process: a forked child has its parent's pool, but not its threads."""
    return ThreadPoolExecutor(threads, thread_name_prefix="search")
