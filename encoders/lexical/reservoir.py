"""Samples a stream of unknown length at random, in one pass and bounded memory."""

from __future__ import annotations

from random import Random
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Reservoir(Generic[Item]):
    """``size`` of the items added, each as likely as any other (algorithm R; Vitter, 1985)."""

    def __init__(self, size: int, chance: Random) -> None:
        self.items: list[Item] = []
        self._size = size
        self._chance = chance
        self._seen = 0

    def add(self, item: Item) -> None:
        """Add the next item of the stream, which may replace another or be dropped."""
        self._seen += 1
        if len(self.items) < self._size:
            self.items.append(item)
        elif self._size and (place := self._chance.randrange(self._seen)) < self._size:
            self.items[place] = item
