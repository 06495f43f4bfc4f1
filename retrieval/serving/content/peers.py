"""The processes that serve one folder together: who writes, and what a state is called."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

REMEMBERED = 1_000  # states whose numbers are kept


class Numbers:
    """Counts states from 1: one that was seen before keeps its number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._last = 0

    def of(self, state: str) -> int:
        """Return the number of the state that has this fingerprint."""
        if state not in self._numbers:
            self._last += 1
            self._numbers[state] = self._last
            while len(self._numbers) > REMEMBERED:
                self._numbers.pop(next(iter(self._numbers)))
        return self._numbers[state]


class Peers:
    """One process that serves a folder alone; several ones override every method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = Numbers()

    def writing(self) -> AbstractContextManager[object]:
        """Wait until nobody else of them changes the folder, and keep it so in the block."""
        return self._lock

    def number(self, state: str) -> int:
        """Return the number that all of them give to a state."""
        return self._numbers.of(state)

    def changed(self) -> int:
        """Return when all of them have opened the newest state: how many of them could not."""
        return 0
