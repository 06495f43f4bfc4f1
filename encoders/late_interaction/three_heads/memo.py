"""Remembers what the heads made of the last texts, so that each text is encoded once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from numpy.typing import NDArray

Head: TypeAlias = Literal["dense", "sparse", "tokens"]
Part: TypeAlias = tuple[NDArray[Any], ...]  # arrays of one text by one head
HEADS: tuple[Head, ...] = ("dense", "sparse", "tokens")

_LOCK = threading.Lock()  # not a memo's own: locks cannot be copied


class Memo:
    """The parts of the texts asked for last, up to ``limit`` bytes; ``mark`` is the weights'.

    Another mark empties it. Safe in threads.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._mark: object = None
        self._parts: OrderedDict[tuple[bytes, Head], Part] = OrderedDict()

    def known(self, keys: Sequence[bytes], head: Head, mark: object) -> dict[bytes, Part]:
        """Return what is remembered of texts for one head."""
        with _LOCK:
            if mark != self._mark:
                self._parts.clear()
                self.size, self._mark = 0, mark
            found = {}
            for key in keys:
                part = self._parts.get((key, head))
                if part is not None:
                    self._parts.move_to_end((key, head))
                    found[key] = part
            return found

    def keep(self, key: bytes, head: Head, part: Part, mark: object) -> None:
        """Remember a part, and forget the oldest where the limit is passed."""
        with _LOCK:
            if mark != self._mark:
                return
            self._forget(key, head)
            self._parts[key, head] = part
            self.size += _bytes(part)
            while self.size > self.limit:
                self._forget(*next(iter(self._parts)))

    def _forget(self, key: bytes, head: Head) -> None:
        part = self._parts.pop((key, head), None)
        self.size -= 0 if part is None else _bytes(part)


def _bytes(part: Part) -> int:
    return sum(array.nbytes for array in part) + 200  # and about that for the objects around
