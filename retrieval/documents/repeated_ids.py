"""Finding an id that came before in a long stream, in eight bytes an id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.documents.document import Document

Entries: TypeAlias = Callable[[], Iterable[tuple[str, Document]]]  # (place, document)

BLOCK = 4096  # ids compared at a time


class SeenIds:
    """Names the ids of a stream whose 64-bit hash occurred before.

    Hashes stand in sorted arrays of doubling length, so a block of ids costs a binary search in
    each of a few arrays. A suspect is almost surely a repetition (two in ten million distinct ids
    share a hash once in some hundred thousand corpora); the caller makes sure by looking.
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
        found = [(self._ids[i], self._places[i]) for i in np.sort(order[repeated])]
        self._insert(ascending)
        self._ids, self._places = [], []
        return found

    def _insert(self, ascending: NDArray[np.int64]) -> None:
        if not len(ascending):
            return
        while self._sorted and len(self._sorted[-1]) <= len(ascending):
            merged = np.concatenate([self._sorted.pop(), ascending])
            merged.sort(kind="stable")  # two ascending runs: one linear merge
            ascending = merged
        self._sorted.append(ascending)


def distinct(entries: Entries) -> Iterator[Document]:
    """Yield the documents of (place, document) pairs, none of whose ids may occur twice.

    Memory: eight bytes a document. The pairs are read again to name a repetition's first place.
    """
    seen = SeenIds()
    for number, (_, document) in enumerate(entries()):
        for suspect in seen.add(document.id, number):
            _refuse(entries, *suspect)
        yield document
    for suspect in seen.suspects():
        _refuse(entries, *suspect)


def _refuse(entries: Entries, name: str, number: int) -> None:
    first: str | None = None
    for earlier, (place, document) in enumerate(entries()):
        if document.id == name and first is not None:
            raise DataError(
                f"{place}: id {name!r} again, first in {first}; ids are unique: remove or "
                "rename one"
            )
        if earlier >= number:
            return  # two ids that share a hash
        if document.id == name:
            first = place
