"""The queue: batches over requests, one bound for all, and the complaints about other servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from sluice.retrieval.serving.faults import Fault
from sluice.retrieval.serving.work.lane import Job, Lane, Ran
from sluice.retrieval.serving.work.pace import Budget


class Bench:
    """A lane whose work is held until it is released, and which notes its batches."""

    def __init__(self, capacity: int = 1_000, **options: Any) -> None:
        self.budget = Budget(capacity)
        self.batches: list[list[Any]] = []
        self.seen: list[Ran] = []
        self.gate = threading.Event()
        self.began = threading.Event()
        options.setdefault("batch_tokens", 8)
        self.lane = Lane("test", self.budget, seen=self.seen.append, **options)

    def run(self, units: Sequence[Any]) -> list[Any]:
        self.batches.append(list(units))
        if "held" in units:
            self.began.set()
            assert self.gate.wait(10)
        if "bad" in units:
            raise ValueError("bad")
        return [f"<{unit}>" for unit in units]

    def job(self, *units: Any, key: str = "a", cost: int = 1, ends: float | None = None) -> Job:
        return Job(key, units, [cost] * len(units), self.run, ends)

    def hold(self) -> Any:
        """Occupy the thread; what is submitted now waits."""
        future = self.lane.submit(self.job("held", key="held"))
        assert self.began.wait(10)
        return future


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(**getattr(request, "param", {}))
    yield made
    made.gate.set()
    made.lane.close(5)


def test_waiting_requests_run_together_and_get_their_own_results(bench: Bench) -> None:
    bench.hold()
    futures = [bench.lane.submit(bench.job(f"q{n}", f"r{n}")) for n in range(3)]
    other = bench.lane.submit(bench.job("x", key="b"))
    bench.gate.set()
    assert [future.result(5) for future in futures] == [[f"<q{n}>", f"<r{n}>"] for n in range(3)]
    assert other.result(5) == ["<x>"]
    assert sorted(map(len, bench.batches[1:])) == [1, 6]


@given(
    sizes=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12), st.integers(1, 30))),
    batch=st.integers(1, 40),
    threads=st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_every_unit_runs_once_in_a_batch_of_its_key(
    sizes: list[tuple[str, int, int]], batch: int, threads: int
) -> None:
    budget, seen = Budget(100_000), []
    lane = Lane("test", budget, batch_tokens=batch, threads=threads)

    def run(units: Sequence[tuple[str, int, int, int]]) -> list[Any]:
        seen.append(list(units))
        return [unit[:3] for unit in units]

    jobs = [
        Job(key, [(key, number, place, cost) for place in range(count)], [cost] * count, run)
        for number, (key, count, cost) in enumerate(sizes)
    ]
    futures = [lane.submit(job) for job in jobs]
    for job, future in zip(jobs, futures, strict=True):
        assert future.result(10) == [unit[:3] for unit in job.units]
    assert lane.close(5)
    assert budget.used == 0
    units = [unit for batch_units in seen for unit in batch_units]
    assert len(units) == len(set(units)) == sum(count for _, count, _ in sizes)
    for batch_units in seen:
        assert len({unit[0] for unit in batch_units}) == 1
        cost = sum(unit[3] for unit in batch_units)
        assert cost <= batch or len(batch_units) == 1


def test_an_input_longer_than_a_batch_runs_alone(bench: Bench) -> None:
    """TEI's issue 723: an endless loop where a batch has fewer tokens than one input."""
    assert bench.lane.submit(bench.job("long", cost=100)).result(5) == ["<long>"]


@pytest.mark.parametrize("bench", [{"capacity": 10}], indirect=True)
def test_one_rule_refuses_single_inputs_and_batches(bench: Bench) -> None:
    """TEI's issue 662: a single input was refused where a batch of one never was."""
    bench.hold()
    bench.lane.submit(bench.job(*range(8)))
    for job in (bench.job("one", cost=2), bench.job("two", "parts")):
        with pytest.raises(Fault, match="the queue is full") as refused:
            bench.lane.submit(job)
        assert refused.value.status == 429
        assert refused.value.retry_after is not None
        assert 1 <= refused.value.retry_after <= 60
    assert bench.lane.submit(bench.job("fits")) is not None


@pytest.mark.parametrize("bench", [{"capacity": 10}], indirect=True)
def test_what_never_fits_is_too_large_rather_than_full(bench: Bench) -> None:
    for job in (bench.job("one", cost=11), bench.job(*range(11))):
        with pytest.raises(Fault, match="send it in parts") as refused:
            bench.lane.submit(job)
        assert refused.value.status == 413


@pytest.mark.parametrize("bench", [{"capacity": 10}], indirect=True)
def test_a_full_queue_stops_nothing(bench: Bench) -> None:
    """TEI's issues 811 and 470: a panic, 'queue is full', under load."""
    bench.hold()
    accepted, refused = [], 0
    for number in range(500):
        try:
            accepted.append((number, bench.lane.submit(bench.job(number))))
        except Fault:
            refused += 1
    assert refused == 500 - len(accepted)
    assert len(accepted) == 9
    bench.gate.set()
    assert [future.result(5) for _, future in accepted] == [[f"<{n}>"] for n, _ in accepted]
    assert bench.lane.submit(bench.job("after")).result(5) == ["<after>"]
    assert bench.budget.used == 0


def test_a_poisoned_request_fails_alone(bench: Bench) -> None:
    bench.hold()
    good = [bench.lane.submit(bench.job(f"g{n}")) for n in range(2)]
    bad = bench.lane.submit(bench.job("fine", "bad"))
    bench.gate.set()
    assert [future.result(5) for future in good] == [["<g0>"], ["<g1>"]]
    with pytest.raises(ValueError, match="bad"):
        bad.result(5)
    assert bench.budget.used == 0


def test_a_run_that_loses_a_result_is_an_error() -> None:
    lane = Lane("test", Budget(100), batch_tokens=8)
    future = lane.submit(Job("a", ["x", "y"], [1, 1], lambda units: units[:1]))
    with pytest.raises(RuntimeError, match="1 results for 2 inputs"):
        future.result(5)
    lane.close(5)


def test_a_cancelled_request_leaves_the_queue(bench: Bench) -> None:
    bench.hold()
    gone, stays = bench.lane.submit(bench.job("gone")), bench.lane.submit(bench.job("stays"))
    assert gone.cancel()
    bench.gate.set()
    assert stays.result(5) == ["<stays>"]
    assert not any("gone" in batch for batch in bench.batches)
    assert bench.budget.used == 0


def test_the_rest_of_a_cancelled_request_is_not_run() -> None:
    first = threading.Event()
    gate = threading.Event()
    ran: list[Any] = []

    def run(units: Sequence[Any]) -> list[Any]:
        ran.extend(units)
        first.set()
        assert gate.wait(10)
        return list(units)

    budget = Budget(1_000)
    lane = Lane("test", budget, batch_tokens=4)
    future = lane.submit(Job("a", range(100), [1] * 100, run))
    assert first.wait(10)
    future.cancel()
    gate.set()
    assert lane.close(5)
    assert len(ran) == 4
    assert budget.used == 0


def test_a_request_whose_time_is_over_is_not_run(bench: Bench) -> None:
    bench.hold()
    late = bench.lane.submit(bench.job("late", ends=time.perf_counter() + 0.01))
    time.sleep(0.02)
    bench.gate.set()
    with pytest.raises(Fault, match=r"deadline_ms: over after \d+ ms in the queue") as refused:
        late.result(5)
    assert refused.value.status == 504
    assert not any("late" in batch for batch in bench.batches)


def test_closing_finishes_what_was_accepted(bench: Bench) -> None:
    held = bench.hold()
    waiting = bench.lane.submit(bench.job("waiting"))
    assert not bench.lane.close(0.01)
    with pytest.raises(Fault, match="stopping") as refused:
        bench.lane.submit(bench.job("new"))
    assert refused.value.status == 503
    bench.gate.set()
    assert bench.lane.close(5)
    assert held.result(0) == ["<held>"]
    assert waiting.result(0) == ["<waiting>"]


def test_a_large_request_lets_small_ones_pass(bench: Bench) -> None:
    bench.hold()
    large = bench.lane.submit(bench.job(*range(100)))
    small = bench.lane.submit(bench.job("small"))
    bench.gate.set()
    assert len(large.result(5)) == 100
    assert small.result(5) == ["<small>"]
    assert "small" in bench.batches[1]


@pytest.mark.parametrize("bench", [{"longest_wait": 0.5, "batch_tokens": 10}], indirect=True)
def test_what_would_wait_too_long_is_refused(bench: Bench) -> None:
    """Twice what can be done is asked for: accepted requests wait for a bounded time."""
    own = bench.run

    def slow(units: Sequence[Any]) -> list[Any]:
        time.sleep(0.01 * len(units))  # 100 tokens a second
        return own(units)

    def job(*units: Any) -> Job:
        return Job("a", units, [1] * len(units), slow)

    for number in range(3):
        bench.lane.submit(job(number)).result(5)
    accepted, refused, waits = [], [], []
    for number in range(300):
        start = time.perf_counter()
        try:
            future = bench.lane.submit(job(number))
        except Fault as fault:
            refused.append(fault)
            waits.append(time.perf_counter() - start)
        else:
            accepted.append(future)
    assert 20 <= len(accepted) <= 200
    assert {fault.status for fault in refused} == {429}
    assert max(waits) < 0.1
    assert all(future.result(10) for future in accepted)
    # A long request holds up nobody: others take turns with it, and are not refused for it.
    large = bench.lane.submit(job(*range(100)))
    small = bench.lane.submit(job("small"))
    assert small.result(5) == ["<small>"]
    assert not large.done()
    large.result(10)


@pytest.mark.parametrize("bench", [{"window": 0.2}], indirect=True)
def test_a_window_gathers_and_a_full_batch_does_not_wait(bench: Bench) -> None:
    start = time.perf_counter()
    futures = [bench.lane.submit(bench.job(name)) for name in ("a", "b")]
    assert [future.result(5) for future in futures] == [["<a>"], ["<b>"]]
    assert time.perf_counter() - start >= 0.19
    assert [sorted(batch) for batch in bench.batches] == [["a", "b"]]
    start = time.perf_counter()
    bench.lane.submit(bench.job(*range(8))).result(5)
    assert time.perf_counter() - start < 0.15


def test_batches_are_seen(bench: Bench) -> None:
    bench.hold()
    futures = [bench.lane.submit(bench.job("a", cost=3)), bench.lane.submit(bench.job("b"))]
    bench.gate.set()
    assert all(future.result(5) for future in futures)
    bench.lane.close(5)
    ran = bench.seen[-1]
    assert (ran.units, ran.tokens, len(ran.waits), ran.error) == (2, 4, 2, False)
    assert bench.lane.waiting == (0, 0)


def test_nothing_to_do_is_done(bench: Bench) -> None:
    assert bench.lane.submit(bench.job()).result(0) == []
