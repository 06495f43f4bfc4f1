"""Parts of a search in several threads: each place once, and errors reach the caller."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numba import config

from sluice.indexing.kernels.calls import in_parallel, in_pieces

Spread = Callable[[Callable[[int, int], None], int], None]


def by_pieces(task: Callable[[int, int], None], count: int) -> None:
    in_pieces(task, count, 4)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("spread", [in_parallel, by_pieces])
def test_each_place_is_done_once_whoever_calls(
    spread: Spread, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "NUMBA_NUM_THREADS", threads)

    def counted(count: int) -> bool:
        done = np.zeros(count, np.int64)

        def task(first: int, last: int) -> None:
            done[first:last] += 1

        spread(task, count)
        return bool((done == 1).all())

    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(counted, list(range(40)) * 3))


@pytest.mark.parametrize("spread", [in_parallel, by_pieces])
def test_an_error_comes_when_no_part_runs_any_more(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "NUMBA_NUM_THREADS", 3)
    last_done = threading.Event()

    def task(first: int, last: int) -> None:
        if not first:
            raise ValueError("the first part")
        if last == 30:
            threading.Event().wait(0.05)
            last_done.set()

    with pytest.raises(ValueError, match="the first part"):
        spread(task, 30)
    assert last_done.is_set()
