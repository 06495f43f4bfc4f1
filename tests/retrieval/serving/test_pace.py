"""How long batches take, whom that refuses, and results that reach the event loop together."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from sluice.retrieval.serving.faults import Fault
from sluice.retrieval.serving.work import lane as lanes
from sluice.retrieval.serving.work.lane import PATIENCE, TURN, Job, Lane
from sluice.retrieval.serving.work.pace import KEEP, Budget, Mailbox, Pace


def test_the_line_is_that_of_weighted_least_squares() -> None:
    draw = np.random.default_rng(3)
    tokens = draw.integers(10, 800, 30)
    seconds = 0.004 + 0.0002 * tokens + draw.normal(0, 0.0005, 30)
    pace = Pace()
    for count, took in zip(tokens, seconds, strict=True):
        pace.saw(int(count), float(took))
    weights = KEEP ** np.arange(29, -1, -1)
    each, fixed = np.polyfit(tokens, seconds, 1, w=np.sqrt(weights))
    np.testing.assert_allclose([pace.each, pace.fixed], [each, fixed], rtol=1e-6)
    # 1,000 tokens in batches of 300 are four batches.
    np.testing.assert_allclose(pace.seconds(1_000, 300), 4 * fixed + 1_000 * each, rtol=1e-6)
    np.testing.assert_allclose(pace.tokens_in(0.1), (0.1 - fixed) / each, rtol=1e-6)


def test_batches_of_one_size_are_a_plain_ratio() -> None:
    pace = Pace()
    assert pace.seconds(100, 10) == 0.0
    assert pace.tokens_in(1.0) == float("inf")
    for _ in range(5):
        pace.saw(20, 0.01)
    np.testing.assert_allclose([pace.each, pace.fixed], [0.0005, 0.0], atol=1e-12)
    noise = Pace()
    for tokens, seconds in ((10, 0.02), (12, 0.01), (14, 0.005)):  # a line that falls
        noise.saw(tokens, seconds)
    assert noise.each > 0
    assert noise.fixed > 0


class Timed:
    """A lane whose batches take a fixed time and one for each token."""

    def __init__(self, each: float, fixed: float = 0.0, **options: Any) -> None:
        self.sizes: list[int] = []
        self.each, self.fixed = each, fixed
        self.told = 0
        options.setdefault("batch_tokens", 10_000)
        self.lane = Lane("test", Budget(100_000), settled=self._tell, **options)

    def _tell(self) -> None:
        self.told += 1

    def run(self, units: Sequence[int]) -> list[int]:
        self.sizes.append(sum(units))
        time.sleep(self.fixed + self.each * sum(units))
        return list(units)

    def submit(self, *costs: int, kind: str = "a") -> Future[list[Any]]:
        return self.lane.submit(Job(kind, costs, costs, self.run, kind=kind))


def test_a_batch_takes_its_turn_and_no_longer() -> None:
    timed = Timed(each=0.001, batch_tokens=1_600)
    timed.submit(20).result(5)
    assert timed.submit(*[10] * 40).result(5) == [10] * 40
    assert timed.sizes[0] == 20
    assert len(timed.sizes) >= 4  # 400 tokens are .4 s, and a turn is .1 s
    assert 20 <= max(timed.sizes) <= TURN / timed.each  # fewer where the machine is busy
    assert timed.told == len(timed.sizes)
    assert timed.lane.close(5)


def test_who_waits_too_long_is_told_when_to_come_again() -> None:
    timed = Timed(each=0.001, longest_wait=0.05)
    timed.submit(10).result(5)
    accepted = []

    def crowd() -> None:
        for _ in range(40):
            accepted.append(timed.submit(10))

    with pytest.raises(Fault) as refused:
        crowd()
    assert 2 <= len(accepted) <= 8  # each takes a hundredth of a second
    assert refused.value.status == 429
    assert refused.value.retry_after == 1
    one = timed.lane._pace("a").seconds(10, 10)  # longer than .01 s on a busy machine
    assert timed.lane._wait() <= max(0.05, PATIENCE * one) + one + 0.025
    # Where one takes long by itself, others may wait for it: two slow ones are no overload.
    more = [timed.submit(90), timed.submit(10)]
    assert all(future.result(5) for future in [*accepted, *more])
    assert PATIENCE * 90 * timed.each > 0.05 + 90 * timed.each
    assert timed.lane.close(5)


@pytest.mark.parametrize(
    ("turns", "runs_long", "expected"), [(2.5, False, 26), (2.5, True, 16), (1.0, True, 6)]
)
def test_the_batch_that_runs_counts_up_to_a_turn(
    turns: float, runs_long: bool, expected: int
) -> None:
    """And up to half of the longest wait: a long batch alone has nobody refused."""
    timed, gate = Timed(each=0.0, longest_wait=turns * TURN), threading.Event()
    timed.lane._pace("a").saw(100, TURN)  # each job of 10 tokens is a tenth of a turn
    timed.lane.submit(Job("held", [1], [1], lambda units: [gate.wait(20)]))
    while timed.lane.waiting != (0, 0):
        time.sleep(0.001)
    (thread,) = timed.lane._running
    timed.lane._running[thread] = time.perf_counter() + (1e6 if runs_long else 0.0)
    accepted = 0
    with pytest.raises(Fault, match="waits"):
        while accepted < 100:
            timed.submit(10)
            accepted += 1
    assert accepted == expected  # the next one would wait for longer than it may
    gate.set()
    assert timed.lane.close(10)
    assert timed.lane._running == {}


def test_each_kind_of_work_has_its_own_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "KINDS", 2)
    timed = Timed(each=0.0, fixed=0.001)
    for kind in "abc":
        timed.submit(1, kind=kind).result(5)
    assert timed.lane.close(5)
    assert len(timed.lane._paces) == 2  # clients cannot make it grow


def test_a_batch_wakes_the_loop_once() -> None:
    mailbox = Mailbox()
    timed = Timed(each=0.0)
    timed.lane._settled = mailbox.wake
    gate = threading.Event()
    held = timed.lane.submit(Job("held", [1], [1], lambda units: (gate.wait(5), list(units))[1]))

    async def go() -> tuple[int, list[Any]]:
        loop = asyncio.get_running_loop()
        wakes, own = 0, loop.call_soon_threadsafe

        def counting(*arguments: Any, **named: Any) -> Any:
            nonlocal wakes
            wakes += 1
            return own(*arguments, **named)

        loop.call_soon_threadsafe = counting  # type: ignore[method-assign]
        jobs = [timed.submit(number) for number in range(1, 9)]
        bad = timed.lane.submit(Job("bad", [1], [1], lambda units: 1 / 0))  # type: ignore[arg-type]
        futures = [mailbox.future(job) for job in (held, *jobs, bad)]
        gate.set()
        results = await asyncio.gather(*futures, return_exceptions=True)
        return wakes, results

    wakes, results = asyncio.run(go())
    assert results[:-1] == [[1], *([number] for number in range(1, 9))]
    assert isinstance(results[-1], ZeroDivisionError)
    assert timed.sizes == [36]
    assert wakes == 3  # the first, the eight, and the one that fails
    assert timed.lane.close(5)


def test_a_future_that_is_done_or_cancelled_is_no_trouble() -> None:
    mailbox = Mailbox()

    async def go() -> None:
        done: Future[list[Any]] = Future()
        done.set_result([1])
        assert await mailbox.future(done) == [1]
        gone: Future[list[Any]] = Future()
        answered = mailbox.future(gone)
        answered.cancel()
        gone.set_result([2])
        mailbox.wake()
        await asyncio.sleep(0)
        left: Future[list[Any]] = Future()
        mailbox.future(left)
        left.cancel()
        mailbox.wake()

    asyncio.run(go())
