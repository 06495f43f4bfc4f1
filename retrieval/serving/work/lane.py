"""A lane: threads that take the work of many requests, and run what belongs together at once."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sluice.retrieval.serving.faults import late, overloaded, stopping
from sluice.retrieval.serving.work.pace import Budget, Pace

SHARES = 8  # a request first gives a batch no more than one part of so many, so that all advance
TURN = 0.1  # seconds that a batch should take at most: larger ones gain little, and others wait
LEAST = 32  # parts of ``batch_tokens``: one of them a batch may have, however long it takes
PATIENCE = 2  # times the slowest first part of those that wait, that a request may wait
KINDS = 64  # of work, whose pace is remembered

Run = Callable[[Sequence[Any]], Sequence[Any]]


@dataclass(eq=False, slots=True)
class Job:
    """The work of one request: ``units`` with their ``costs`` in tokens, and what runs them.

    Jobs of equal ``key`` run together, by any one's ``run``, which returns a result for each unit.
    A job that has waited until ``ends`` (``time.perf_counter``) is given up. A cancelled
    ``future`` takes its waiting units out of the queue. Jobs of one ``kind`` take the same time for
    a token.
    """

    key: Hashable
    units: Sequence[Any]
    costs: Sequence[int]
    run: Run
    ends: float | None = None
    kind: Hashable = None
    future: Future[list[Any]] = field(default_factory=Future)
    arrived: float = field(default_factory=time.perf_counter)
    started: float | None = None
    taken: int = 0
    left: int = 0  # tokens of the units that are not taken
    done: int = 0
    results: list[Any] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """The tokens of all units."""
        return sum(self.costs)


@dataclass(frozen=True, slots=True)
class Ran:
    """What one batch was, for metrics: seconds of the work and of each request's waiting."""

    lane: str
    units: int
    tokens: int
    seconds: float
    waits: tuple[float, ...]
    error: bool


Share = tuple[Job, int, int]  # a job and which of its units


class Lane:
    """``threads`` that run jobs in batches of at most ``batch_tokens``, whole units at least one.

    A free thread takes what is there, about as much as it does in ``TURN`` seconds by the pace of
    late; with ``window`` seconds it waits so long after the oldest job came, unless a whole batch
    is there. Of one key, the jobs take turns, so that a large one does not hold up small ones.
    Where a new job would wait for more than ``longest_wait`` seconds for its first units, it is
    refused.
    ``settled`` is called after results were given to futures: once for a batch.
    """

    def __init__(
        self,
        name: str,
        budget: Budget,
        *,
        batch_tokens: int,
        window: float = 0.0,
        threads: int = 1,
        longest_wait: float | None = None,
        seen: Callable[[Ran], None] | None = None,
        settled: Callable[[], None] | None = None,
    ) -> None:
        self.name, self.budget = name, budget
        self.batch_tokens, self.window = batch_tokens, window
        self.longest_wait = longest_wait
        self._seen, self._settled = seen, settled
        self._paces: dict[Hashable, Pace] = {}
        self._jobs: list[Job] = []
        self._ahead: Counter[Hashable] = Counter()  # tokens by kind that a new job waits for
        self._slowest = 0.0  # seconds of the first part of one of them
        self._running: dict[int, float] = {}  # by thread: when its batch is done, about
        self._left = False  # whether a job that waits was cancelled, or failed
        self._soonest = math.inf  # when the next deadline of a job that waits is over
        self._change = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"sluice-{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> Future[list[Any]]:
        """Queue a job; raises a ``Fault`` if the queue is full."""
        job.results, job.left = [None] * len(job.units), job.tokens
        if not job.units:
            job.future.set_result([])
            return job.future
        job.future.add_done_callback(self._note_left)
        with self._change:
            if self._closed:
                raise stopping()
            self._drop()  # also while all threads are busy: its room is free
            if self.longest_wait is not None:
                self._check_wait(job, self.longest_wait)
            self.budget.take(job.tokens)
            self._jobs.append(job)
            self._ahead[job.kind] += self._first(job)
            self._slowest = max(self._slowest, self._seconds(job))
            self._soonest = min(self._soonest, math.inf if job.ends is None else job.ends)
            self._change.notify()
        return job.future

    def _note_left(self, future: Future[list[Any]]) -> None:
        if future.cancelled() or future.exception() is not None:  # threads: only ever set here
            self._left = True

    @property
    def waiting(self) -> tuple[int, int]:
        """How many jobs and tokens wait."""
        with self._change:
            left = [job.left for job in self._jobs]
        return len(left), sum(left)

    def _check_wait(self, job: Job, longest: float) -> None:
        wait = self._wait()
        if wait <= longest:
            return
        # A few slow requests do not overload it, nor do those behind them.
        longest = max(longest, PATIENCE * max(self._slowest, self._seconds(job)))
        if wait > longest:
            raise overloaded(
                f"a request waits {wait:.1f} s already; try again after the seconds of Retry-After",
                max(1, math.ceil(wait - longest)),
            )

    def _wait(self) -> float:
        """Return about how many seconds a new job waits.

        Of a batch that runs, no more counts than one takes its turn: a long one alone must not have
        others refused.
        """
        now, turn = time.perf_counter(), TURN
        if self.longest_wait is not None:
            turn = min(TURN, self.longest_wait / 2)
        running = sum(min(turn, max(0.0, end - now)) for end in self._running.values())
        queued = sum(
            self._pace(kind).seconds(tokens, self._room(kind))
            for kind, tokens in self._ahead.items()
        )
        return (queued + running) / len(self._threads)

    def _seconds(self, job: Job) -> float:
        return self._pace(job.kind).seconds(self._first(job), self._room(job.kind))

    def _first(self, job: Job) -> int:
        """Return the tokens that a job has in the next batch, if others want their part."""
        share = max(1, self._room(job.kind) // SHARES)
        return min(job.left, max(share, job.costs[job.taken]))

    def _count(self) -> None:
        """Count anew what a job that comes now waits for."""
        self._ahead.clear()
        for job in self._jobs:
            self._ahead[job.kind] += self._first(job)
        self._slowest = max(map(self._seconds, self._jobs), default=0.0)
        ends = [job.ends for job in self._jobs if job.ends is not None and job.taken == 0]
        self._soonest = min(ends, default=math.inf)

    def _pace(self, kind: Hashable) -> Pace:
        pace = self._paces.get(kind)
        if pace is None:
            pace = self._paces[kind] = Pace()
            while len(self._paces) > KINDS:
                self._paces.pop(next(iter(self._paces)))
        return pace

    def _room(self, kind: Hashable) -> int:
        """Return the most tokens of a batch."""
        room = max(self.batch_tokens / LEAST, self._pace(kind).tokens_in(TURN))
        return max(1, int(min(self.batch_tokens, room)))

    def close(self, seconds: float) -> bool:
        """Refuse new jobs and finish those accepted; whether all were done in time."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        ends = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))
        return self.is_done

    @property
    def is_done(self) -> bool:
        """Whether the lane was closed, and has done what it had accepted."""
        return self._closed and not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while shares := self._next():
            self._run(shares)

    def _next(self) -> list[Share]:
        """Wait for a batch; an empty one ends the thread."""
        with self._change:
            while True:
                self._drop()
                if not self._jobs:
                    if self._closed:
                        return []
                    self._change.wait()
                    continue
                left = self._jobs[0].arrived + self.window - time.perf_counter()
                if left > 0 and not self._closed and not self._is_full():
                    self._change.wait(left)
                    continue
                return self._batch()

    def _is_full(self) -> bool:
        key, tokens = self._jobs[0].key, 0
        room = self._room(self._jobs[0].kind)
        for job in self._jobs:
            tokens += job.left if job.key == key else 0
            if tokens >= room:
                return True
        return False

    def _drop(self) -> None:
        """Take out what was cancelled, or has waited for too long."""
        now = time.perf_counter()
        if not self._left and now < self._soonest:
            return
        self._left = False
        waiting, late_ones = [], False
        for job in self._jobs:
            expired = job.ends is not None and now >= job.ends and job.taken == 0
            if not (expired or job.future.done()):
                waiting.append(job)
                continue
            self.budget.give_back(job.left, done=False)
            job.taken, job.left = len(job.units), 0
            if expired:
                waited = (now - job.arrived) * 1000
                _fail(job, late(f"deadline_ms: over after {waited:,.0f} ms in the queue"))
                late_ones = True
        self._jobs = waiting
        self._count()
        if late_ones:
            self._tell()

    def _batch(self) -> list[Share]:
        """Take units of the oldest job's key: in turns, until the batch is full."""
        key = self._jobs[0].key
        mates = [job for job in self._jobs if job.key == key]
        kind = self._jobs[0].kind
        whole = room = self._room(kind)
        share = max(1, room // SHARES)
        parts: dict[int, Share] = {}
        now = time.perf_counter()
        while mates and room > 0:
            for job in mates:
                first, spent = job.taken, 0
                while job.taken < len(job.units) and room > 0 and spent < share:
                    cost = job.costs[job.taken]
                    if cost > room and (parts or job.taken > first):
                        room = 0  # the next one does not fit, and the batch is not empty
                        break
                    room, spent = room - cost, spent + cost
                    job.taken, job.left = job.taken + 1, job.left - cost
                if job.taken > first:
                    job.started = job.started or now
                    before = parts.get(id(job), (job, first, first))
                    parts[id(job)] = (job, before[1], job.taken)
            mates = [job for job in mates if job.taken < len(job.units)]
        tokens = sum(sum(job.costs[first:last]) for job, first, last in parts.values())
        seconds = self._pace(kind).seconds(tokens, max(whole, tokens))
        self._running[threading.get_ident()] = now + seconds
        unfinished = [job for job in self._jobs if job.taken < len(job.units)]
        begun = [job for job in unfinished if id(job) in parts]
        self._jobs = [job for job in unfinished if id(job) not in parts] + begun
        self._count()
        if self._jobs:
            self._change.notify()
        return list(parts.values())

    def _run(self, shares: list[Share]) -> None:
        kind = shares[0][0].kind
        start = time.perf_counter()
        waits = tuple(start - job.arrived for job, first, _ in shares if first == 0)
        pairs = [(job, place) for job, first, last in shares for place in range(first, last)]
        pairs.sort(key=lambda pair: -pair[0].costs[pair[1]])  # by length: little padding
        tokens = sum(job.costs[place] for job, place in pairs)
        error = False
        try:
            results = _results(shares[0][0].run, [job.units[place] for job, place in pairs])
        except Exception as failure:
            error = True
            self._run_apart(shares, failure)
        else:
            for (job, place), result in zip(pairs, results, strict=True):
                job.results[place] = result
            self._finish(shares)
        seconds = time.perf_counter() - start
        self.budget.give_back(tokens, done=True)
        with self._change:
            self._running.pop(threading.get_ident(), None)
            if not error:
                self._pace(kind).saw(max(1, tokens), max(seconds, 1e-6))
        if self._seen is not None:
            self._seen(Ran(self.name, len(pairs), tokens, seconds, waits, error))
        self._tell()  # last: the event loop wakes, and holds the interpreter for a while

    def _run_apart(self, shares: list[Share], failure: Exception) -> None:
        """Run the requests of a failed batch one by one, so that only the culprit fails."""
        for job, first, last in shares:
            error: Exception | None = failure if len(shares) == 1 else None
            if error is None:
                try:
                    job.results[first:last] = _results(job.run, list(job.units[first:last]))
                except Exception as own:
                    error = own
            if error is None:
                self._finish([(job, first, last)])
            else:
                _fail(job, error)

    def _tell(self) -> None:
        if self._settled is not None:
            self._settled()

    def _finish(self, shares: list[Share]) -> None:
        with self._change:
            for job, first, last in shares:
                job.done += last - first
        for job, _, _ in shares:
            if job.done == len(job.units):
                with suppress(InvalidStateError):  # cancelled, or failed in another part
                    job.future.set_result(job.results)


def _results(run: Run, units: list[Any]) -> list[Any]:
    results = list(run(units))
    if len(results) != len(units):
        raise RuntimeError(f"{len(results)} results for {len(units)} inputs")
    return results


def _fail(job: Job, error: Exception) -> None:
    with suppress(InvalidStateError):
        job.future.set_exception(error)
