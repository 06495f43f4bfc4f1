"""The bound on what waits or runs: one number of tokens for all kinds of work."""

from __future__ import annotations

import math
import threading
import time

from sluice.retrieval.serving.faults import overloaded, too_large

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
