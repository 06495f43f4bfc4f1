"""What follows frequent n-grams, remembered up to a number of bytes."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.indexing.fm.segment_list import Ranges, Segments

REMEMBERED: Final = 1 << 26  # bytes of lists


class Continuations(NamedTuple):
    """The tokens that follow an n-gram, ascending, int32, and how often each does, int64."""

    tokens: NDArray[np.int32]
    counts: NDArray[np.int64]


class Remembered:
    """What follows n-grams, by their ranges in one state of the segments.

    An index and its readers share one, so that the bytes are those of all. It may be read while
    another thread keeps something, whose caller holds the index's lock.
    """

    def __init__(self) -> None:
        # Replaced together: ranges mean something in their segments only.
        self._held: tuple[Segments, dict[Ranges, Continuations]] = (), {}
        self.bytes = 0

    def find(self, segments: Segments, ranges: Ranges) -> Continuations | None:
        """Return what follows the n-gram of some ranges; None if it is not remembered."""
        of, lists = self._held
        return lists.get(ranges) if of is segments else None

    def keep(self, segments: Segments, ranges: Ranges, found: Continuations) -> None:
        """Remember a list, and forget those of other segments, and the oldest beyond the bytes."""
        if self._held[0] is not segments:
            self._held, self.bytes = (segments, {}), 0
        lists = self._held[1]
        if ranges not in lists:
            lists[ranges] = found
            self.bytes += _bytes(found)
        while self.bytes > REMEMBERED:
            self.bytes -= _bytes(lists.pop(next(iter(lists))))


def _bytes(found: Continuations) -> int:
    return sum(array.nbytes for array in found)
