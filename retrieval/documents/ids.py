"""Checks ids of documents and queries: each is a text that is not empty, and occurs once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError

Entry = TypeVar("Entry", bound=tuple[Any, ...])  # a Document or another tuple: its id comes first

BLOCK = 4096  # ids compared at a time


def id_text(place: str, value: Any) -> str:
    """Return an id as text; a whole number is written out, anything else is a ``DataError``.

    ``place`` begins the message, as in ``corpus.jsonl:7: '_id'``.
    """
    if isinstance(value, bytes):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{place}: {value!r:.80} is not UTF-8 ({error.reason})") from None
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise DataError(
            f"{place} is {value!r:.80}; expected a text that is not empty, or a whole number"
        )
    return str(value)


class SeenIds:
    """Names the ids of a stream whose 64-bit hash occurred before.

    Hashes are kept in sorted arrays of doubling length, so a block of ids costs a binary search in
    each of a few arrays. A suspect is almost surely a repetition (two in ten million distinct ids
    share a hash once in some hundred thousand corpora); the caller compares the ids themselves.
    """

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._places: list[int] = []
        self._sorted: list[NDArray[np.int64]] = []

    def add(self, name: str, place: int) -> list[tuple[str, int]]:
        """Take the id at ``place``; returns suspects (id, place) once a block is full."""
        self._ids.append(name)
        self._places.append(place)
        return self.suspects() if len(self._ids) == BLOCK else []

    def suspects(self) -> list[tuple[str, int]]:
        """Compare the ids not yet compared, as at the end of the stream."""
        hashes = np.fromiter(map(hash, self._ids), np.int64, len(self._ids))
        order = np.argsort(hashes, kind="stable")
        ascending = hashes[order]
        repeated = np.zeros(len(hashes), dtype=bool)
        repeated[1:] = ascending[1:] == ascending[:-1]
        for earlier in self._sorted:
            at = np.minimum(np.searchsorted(earlier, ascending), len(earlier) - 1)
            repeated |= earlier[at] == ascending
        suspects = [(self._ids[i], self._places[i]) for i in np.sort(order[repeated])]
        self._insert(ascending)
        self._ids, self._places = [], []
        return suspects

    def _insert(self, ascending: NDArray[np.int64]) -> None:
        if not len(ascending):
            return
        while self._sorted and len(self._sorted[-1]) <= len(ascending):
            merged = np.concatenate([self._sorted.pop(), ascending])
            merged.sort(kind="stable")  # two ascending runs: one linear merge
            ascending = merged
        self._sorted.append(ascending)


def distinct(entries: Callable[[], Iterable[tuple[str, Entry]]]) -> Iterator[Entry]:
    """Yield the entries of (place, entry) pairs; ``DataError`` if an id occurs twice.

    Memory: eight bytes an entry. The pairs are read again to name where an id occurs first.
    """
    seen = SeenIds()
    for number, (_, entry) in enumerate(entries()):
        for suspect in seen.add(entry[0], number):
            _refuse(entries, *suspect)
        yield entry
    for suspect in seen.suspects():
        _refuse(entries, *suspect)


def _refuse(entries: Callable[[], Iterable[tuple[str, Entry]]], repeated: str, number: int) -> None:
    first: str | None = None
    for earlier, (place, entry) in enumerate(entries()):
        if entry[0] == repeated and first is not None:
            raise DataError(
                f"{place}: id {repeated!r} again, first in {first}; ids are unique: remove or "
                "rename one"
            )
        if earlier >= number:
            return  # two ids that share a hash
        if entry[0] == repeated:
            first = place
