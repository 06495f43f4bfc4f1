"""The segments of an FM-index: built, joined, read together, saved; frequent n-grams remembered."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.tokens import TokenSequences
from sluice.indexing.own.fm.segment import (
    MARK,
    Ints,
    Keep,
    Occurrences,
    Range,
    Segment,
    damaged,
    open_segment,
)
from sluice.indexing.storage.rows import fact

MOST_TOKENS: Final = 2**31 - 1  # of a segment, with its texts: places are int32


class Placed(NamedTuple):
    """A segment and the index's row of its first text; ``first`` is -1 where texts are deleted.

    What occurs in deleted texts is subtracted from what occurs in all, so that no deletion builds
    a large segment anew.
    """

    segment: Segment
    first: int

    @property
    def sign(self) -> int:
        """What an occurrence counts."""
        return -1 if self.first < 0 else 1


Segments = tuple[Placed, ...]
Ranges = tuple[Range, ...]  # one for each segment


def built(texts: TokenSequences, first: int, most: int, keep: Keep) -> Segments:
    """Return segments of the texts, of at most ``most`` tokens and marks, or of a single text."""
    segments, start = list[Placed](), 0
    sizes = texts.bounds + np.arange(len(texts) + 1)
    while start < len(texts):
        stop = int(np.searchsorted(sizes, sizes[start] + most, "right")) - 1
        stop = max(stop, start + 1)
        placed = first if first < 0 else first + start
        segments.append(Placed(Segment.build(texts[start:stop], keep), placed))
        start = stop
    return tuple(segments)


def extended(
    segments: Segments, texts: TokenSequences, first: int, most: int, keep: Keep
) -> Segments:
    """Return the segments with further texts, joined with smaller ones of their kind.

    Like the digits of a binary counter: each token is sorted a number of times that is logarithmic
    in how often texts were added.
    """
    kind = 1 if first >= 0 else -1
    same = [placed for placed in segments if placed.sign == kind]
    others = tuple(placed for placed in segments if placed.sign != kind)
    parts, size = [texts], len(texts.ids) + len(texts)
    while same:
        last = same[-1]
        own = len(last.segment.places)
        if own > size or own + size > most:
            break
        parts.insert(0, last.segment.read(np.arange(last.segment.texts)))
        size, first = size + own, last.first
        same.pop()
    new = built(TokenSequences.joined(parts), first, most, keep)
    return (*same, *new, *others) if kind > 0 else (*others, *same, *new)


def tokens(segments: Segments) -> int:
    """Return the number of tokens of live texts."""
    return sum(placed.sign * placed.segment.tokens for placed in segments)


def every(segments: Segments) -> Ranges:
    """Return the ranges of the empty n-gram."""
    return tuple(placed.segment.every for placed in segments)


def narrowed(segments: Segments, ranges: Ranges, token: int) -> Ranges:
    """Return the ranges of an n-gram with one token more at its end."""
    return tuple(
        placed.segment.extended(rows, token) for placed, rows in zip(segments, ranges, strict=True)
    )


def total(segments: Segments, ranges: Ranges) -> int:
    """Return how often an n-gram occurs in live texts."""
    pairs = zip(segments, ranges, strict=True)
    return sum(placed.sign * (last - first) for placed, (first, last) in pairs)


def followed(segments: Segments, ranges: Ranges) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the tokens that follow an n-gram in live texts, ascending, with their counts."""
    from sluice.indexing.own.fm.kernels import count_following

    size = max((len(placed.segment.starts) - 1 for placed in segments), default=1)
    wide = sum(last - first for first, last in ranges)
    seen, symbols = _zeros(size), np.empty(min(wide, size), np.int32)
    distinct = 0
    for placed, (first, last) in zip(segments, ranges, strict=True):  # the deleted ones are last
        if first < last:
            following = placed.segment.following
            distinct = count_following(
                following, first, last, placed.sign, seen[:size], symbols, distinct
            )
            if distinct < 0:
                seen[:] = 0
                raise damaged("following", size)
    found = np.sort(symbols[:distinct])
    counts = seen[found].astype(np.int64)
    seen[found] = 0
    some = (counts > 0) & (found != MARK)
    return found[some] - np.int32(1), counts[some]


class _Scratch(threading.local):
    zeros: Ints = np.zeros(0, np.int32)


_scratch = _Scratch()


def _zeros(size: int) -> Ints:
    """Return this thread's array of zeros, at least so long; who writes to it cleans it."""
    if len(_scratch.zeros) < size:
        _scratch.zeros = np.zeros(size, np.int32)
    return _scratch.zeros


def occurrences(segments: Segments, ranges: Ranges, length: int) -> Occurrences:
    """Return where an n-gram begins, in deleted texts too, by row and position."""
    parts = [
        (placed.first, placed.segment.occurrences(rows, length))
        for placed, rows in zip(segments, ranges, strict=True)
        if placed.first >= 0 and rows[0] < rows[1]
    ]
    rows = np.concatenate([np.zeros(0, np.int64), *(first + each.rows for first, each in parts)])
    positions = np.concatenate([np.zeros(0, np.int64), *(each.positions for _, each in parts)])
    order = np.lexsort((positions, rows))
    return Occurrences(rows[order], positions[order])


def texts_of(segments: Segments, rows: NDArray[np.int64]) -> TokenSequences:
    """Return the token ids of rows, deleted ones too, in their order."""
    parts, order = list[TokenSequences](), np.empty(len(rows), np.int64)
    done = 0
    for placed in segments:
        local = rows - placed.first
        here = np.flatnonzero((local >= 0) & (local < placed.segment.texts))
        if placed.first >= 0 and len(here):
            parts.append(placed.segment.read(local[here]))
            order[here] = np.arange(done, done + len(here))
            done += len(here)
    return TokenSequences.joined(parts)[order]


def write_segments(segments: Segments, folder: Path) -> list[dict[str, int]]:
    """Write the segments' files; return the facts that describe them."""
    return [
        {
            **placed.segment.write(folder, f"s{number:06d}-"),
            "deleted": int(placed.first < 0),
        }
        for number, placed in enumerate(segments, 1)
    ]


def open_segments(folder: Path, described: Sequence[Mapping[str, Any]]) -> Segments:
    """Open what ``write_segments`` wrote, mapped into memory."""
    segments, row = list[Placed](), 0
    for number, counts in enumerate(described, 1):
        segment = open_segment(folder, f"s{number:06d}-", counts)
        deleted = fact(counts, "deleted", int, folder)
        segments.append(Placed(segment, -1 if deleted else row))
        row += 0 if deleted else segment.texts
    return tuple(segments)


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
