"""Brings what threads have done to an event loop: the results of a batch in one wake-up."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

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
