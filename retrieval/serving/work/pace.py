"""How long batches take, how much may wait or run, and results brought to the event loop."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from sluice.retrieval.serving.faults import overloaded, too_large

Done = Future[list[Any]]
Answered = asyncio.Future[list[Any]]


class Mailbox:
    """Futures of threads as futures of event loops, which get their results at ``wake``.

    ``asyncio.wrap_future`` wakes the loop for each: it then takes the interpreter's lock, and the
    thread that has the other results waits for it, once for each of a batch.
    """

    def __init__(self) -> None:
        self._done: deque[tuple[asyncio.AbstractEventLoop, Answered, Done]] = deque()

    def future(self, done: Done) -> Answered:
        """Return a future of the running loop."""
        loop = asyncio.get_running_loop()
        answered: Answered = loop.create_future()
        done.add_done_callback(partial(self._put, loop, answered))
        if done.done():
            self.wake()
        return answered

    def wake(self) -> None:
        """Give the loops what is there; threads may call it."""
        letters: dict[asyncio.AbstractEventLoop, list[tuple[Answered, Done]]] = {}
        while self._done:
            try:
                loop, answered, done = self._done.popleft()
            except IndexError:  # another thread took the last one
                break
            letters.setdefault(loop, []).append((answered, done))
        for loop, own in letters.items():
            with suppress(RuntimeError):  # a loop that ended waits for nothing
                loop.call_soon_threadsafe(_deliver, own)

    def _put(self, loop: asyncio.AbstractEventLoop, answered: Answered, done: Done) -> None:
        if not done.cancelled():
            self._done.append((loop, answered, done))


def _deliver(letters: list[tuple[Answered, Done]]) -> None:
    for answered, done in letters:
        if answered.done():
            continue
        error = done.exception()
        if error is None:
            answered.set_result(done.result())
        else:
            answered.set_exception(error)


KEEP = 0.9  # of a batch's weight is left after the next one
MOST_GAIN = 16.0  # that a token in a batch is cheaper than one alone


class Pace:
    """The seconds of a batch as ``fixed + each * tokens``: least squares, late batches count most.

    A batch of one query says little of one of fifty, so a plain ratio of tokens to seconds refused
    the first burst after quiet hours.
    """

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self.fixed = self.each = 0.0

    def saw(self, tokens: int, seconds: float) -> None:
        """Learn from a batch that ran."""
        self._weight = KEEP * self._weight + 1
        self._x = KEEP * self._x + tokens
        self._y = KEEP * self._y + seconds
        self._xx = KEEP * self._xx + tokens * tokens
        self._xy = KEEP * self._xy + tokens * seconds
        x, y = self._x / self._weight, self._y / self._weight
        ratio, variance = y / x, self._xx / self._weight - x * x
        slope = ratio
        if variance > 1e-4 * x * x:
            slope = (self._xy / self._weight - x * y) / variance
        self.each = min(ratio, max(slope, ratio / MOST_GAIN))
        self.fixed = max(0.0, y - self.each * x)

    def seconds(self, tokens: int, batch: int) -> float:
        """Return the time of so many tokens in batches of at most ``batch``; 0 before the first."""
        return self.fixed * -(-tokens // batch) + self.each * tokens

    def tokens_in(self, seconds: float) -> float:
        """Return the tokens of a batch that takes so long, and at least half of it by its tokens.

        Infinite before the first batch.
        """
        if not self.each:
            return float("inf")
        return max(seconds - self.fixed, self.fixed) / self.each


LONGEST_WAIT = 60  # seconds that a client is asked to wait
MEMORY = 10.0  # seconds after which a measured speed counts for a third


class Budget:
    """Tokens that are accepted and not done yet, at most ``capacity``; threads may share it.

    One rule holds for a single input and for many: what does not fit now is refused with the time
    after which it should, and what can never fit is refused as too large.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lock = threading.Lock()
        self._used = 0
        self._speed = 0.0  # tokens a second, of late
        self._since = time.monotonic()

    @property
    def used(self) -> int:
        """The tokens that are accepted and not done."""
        return self._used

    def take(self, tokens: int) -> None:
        """Accept so many tokens; a ``Fault`` of 429 if they do not fit, of 413 if they never do."""
        if tokens > self.capacity:
            raise too_large(
                f"the request is about {tokens:,} tokens of work, and the queue holds "
                f"{self.capacity:,}; send it in parts"
            )
        with self._lock:
            if self._used + tokens > self.capacity:
                raise overloaded(
                    f"the queue is full ({self._used:,} of {self.capacity:,} tokens); try again "
                    "after the seconds of Retry-After",
                    self._wait_for(self._used + tokens - self.capacity),
                )
            self._used += tokens

    def give_back(self, tokens: int, *, done: bool) -> None:
        """Free the room of tokens that are done, or were given up."""
        with self._lock:
            self._used -= tokens
            if done:
                now = time.monotonic()
                took, self._since = now - self._since, now
                weight = math.exp(-took / MEMORY)
                self._speed = weight * self._speed + (1 - weight) * tokens / max(took, 1e-6)

    def _wait_for(self, tokens: int) -> int:
        speed = max(self._speed, 1.0)
        return max(1, min(LONGEST_WAIT, math.ceil(tokens / speed)))
