"""An immutable part of an FM-index: texts sorted by what stands before each of their tokens.

The index is that of Ferragina and Manzini (2000) over the reversed texts, so that an n-gram is
extended at its end, as text is generated (SEAL; Bevilacqua et al. 2022, section 3.1). In place of a
wavelet tree each symbol has the sorted list of rows that it follows, 4 bytes a token, in which a
rank is one binary search.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.errors import IndexFormatError
from sluice.encoders.foundation.tokens import TokenSequences
from sluice.indexing.kernels.calls import lent, notice_once
from sluice.indexing.storage.rows import fact, write_array

MARK: Final = 0  # the symbol before each text; that of a token is its id and 1
LAYOUT: Final[Mapping[str, Any]] = {
    "bounds": np.int64,
    "starts": np.int64,
    "following": np.int32,
    "lists": np.int32,
    "places": np.int32,
}
READ_ALL: Final = 64  # above one in so many tokens, all texts are read back at once

Ints = NDArray[np.int32]
Keep = Callable[[Ints], Ints]  # where a large array is put: in memory, or in a file
Range = tuple[int, int]  # rows [first, last)
Mark = tuple[int, int]  # of a file, see ``_mark``
Files = Mapping[str, tuple[Path, Mark]]


class Occurrences(NamedTuple):
    """Where an n-gram begins: texts and the positions in them, both int64 ``[n]``."""

    rows: NDArray[np.int64]
    positions: NDArray[np.int64]


class Segment:
    """Texts 0 to n - 1. Its rows are the texts' tokens, and a mark before each text.

    Rows are sorted by the token itself, then the one before it and so on, across the mark into the
    text before: those at which an n-gram ends are one range. ``starts[c]`` is the first row of
    symbol c, ``following[row]`` the symbol after it, ``lists`` the rows that each symbol follows,
    and ``places[row]`` its place in all texts, each of which begins with its mark at
    ``bounds[i] + i``.
    """

    def __init__(
        self,
        bounds: NDArray[np.int64],
        starts: NDArray[np.int64],
        following: Ints,
        lists: Ints,
        places: Ints,
    ) -> None:
        self.bounds = bounds
        self.starts = lent(starts)
        self.following = lent(following)
        self.lists = lent(lists)
        self.places = lent(places)
        self.files: Files = {}  # where its arrays lie, if they are files

    @classmethod
    def build(cls, texts: TokenSequences, keep: Keep = lambda array: array) -> Self:
        """Sort texts, at least one; ``keep`` puts the three large arrays where they are to stay."""
        from sluice.indexing.own.fm.kernels import finish, suffix_array

        reverse = _marked(texts)[::-1].copy()
        symbols = int(reverse.max()) + 1
        starts = np.concatenate(([0], np.cumsum(np.bincount(reverse, minlength=symbols))))
        with notice_once():
            places = suffix_array(reverse, symbols)
            following, lists = np.empty_like(reverse), np.empty_like(reverse)
            finish(reverse, places, starts, following, lists)
        del reverse
        return cls(np.array(texts.bounds), starts, keep(following), keep(lists), keep(places))

    @property
    def texts(self) -> int:
        """The number of texts."""
        return len(self.bounds) - 1

    @property
    def tokens(self) -> int:
        """The number of tokens, without marks."""
        return int(self.bounds[-1])

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(int(getattr(self, name).nbytes) for name in LAYOUT)

    @property
    def every(self) -> Range:
        """The range of the empty n-gram."""
        return 0, len(self.places)

    def extended(self, rows: Range, token: int) -> Range:
        """Return the range of an n-gram with one token more at its end; empty if there is none."""
        symbol = token + 1
        if rows[0] >= rows[1] or not 0 < symbol < len(self.starts) - 1:
            return 0, 0
        first = int(self.starts[symbol])
        own = self.lists[first : int(self.starts[symbol + 1])]
        low, high = own.searchsorted(np.array(rows, np.int32)).tolist()  # int64: a copy of own
        return first + low, first + high

    def occurrences(self, rows: Range, length: int) -> Occurrences:
        """Return where an n-gram of so many tokens begins, in no order."""
        ends = self.places[rows[0] : rows[1]].astype(np.int64)
        texts = np.searchsorted(self._begins, ends, "right") - 1
        return Occurrences(texts, ends - self._begins[texts] - length)

    def read(self, texts: NDArray[np.int64]) -> TokenSequences:
        """Return the token ids of some texts, in their order."""
        lengths = np.diff(self.bounds)[texts]
        bounds = np.concatenate(([0], np.cumsum(lengths)))
        if bounds[-1] * READ_ALL > self.tokens:
            return self._all_texts()[texts]
        from sluice.indexing.own.fm.kernels import read_texts

        ids = np.empty(int(bounds[-1]), np.int32)
        rows = self._mark_rows[texts]
        if not read_texts(self.following, self.lists, self.starts, rows, ids, bounds):
            raise damaged("following", len(self.starts) - 1)
        return TokenSequences(ids, bounds)

    def _all_texts(self) -> TokenSequences:
        text = np.empty(len(self.places), np.int32)
        text[self.places] = np.repeat(
            np.arange(len(self.starts) - 1, dtype=np.int32), np.diff(self.starts)
        )
        return TokenSequences(text[text != MARK] - np.int32(1), self.bounds)

    @cached_property
    def _begins(self) -> NDArray[np.int64]:
        """The place of the mark before each text."""
        return self.bounds[:-1] + np.arange(self.texts)

    @cached_property
    def _mark_rows(self) -> Ints:
        """The row of the mark before each text."""
        marks = self.places[: int(self.starts[1])].astype(np.int64)
        rows = np.empty(self.texts, np.int32)
        rows[np.searchsorted(self._begins, marks)] = np.arange(self.texts, dtype=np.int32)
        return rows

    def write(self, folder: Path, prefix: str) -> dict[str, int]:
        """Write the arrays' files; return the counts that ``open_segment`` needs.

        Those that are files already are linked, where that is possible.
        """
        files = {}
        for name, dtype in LAYOUT.items():
            array, target = getattr(self, name), folder / f"{prefix}{name}.npy"
            if not _linked(self.files.get(name), target):
                write_array(target, [array], array.shape, dtype)
            files[name] = target, _mark(target)
        self.files = files
        return {"texts": self.texts, "tokens": self.tokens, "symbols": len(self.starts) - 1}


def open_segment(folder: Path, prefix: str, counts: Mapping[str, Any]) -> Segment:
    """Open what ``Segment.write`` wrote, mapped into memory.

    ``IndexFormatError`` where the small arrays, by which the large ones are read, do not fit.
    """
    texts, tokens, symbols = (
        fact(counts, name, int, folder) for name in ("texts", "tokens", "symbols")
    )
    rows = texts + tokens
    lengths = {"bounds": texts + 1, "starts": symbols + 1}
    arrays = {
        name: open_array(folder / f"{prefix}{name}.npy", dtype, (lengths.get(name, rows),))
        for name, dtype in LAYOUT.items()
    }
    for name, end in (("bounds", tokens), ("starts", rows)):
        edges = arrays[name]
        if not len(edges) or edges[0] or edges[-1] != end or (np.diff(edges) < 0).any():
            raise IndexFormatError(
                f"{folder / f'{prefix}{name}.npy'}: does not rise from 0 to {end:,}; rebuild"
            )
    segment = Segment(**arrays)
    paths = {name: folder / f"{prefix}{name}.npy" for name in LAYOUT}
    segment.files = {name: (path, _mark(path)) for name, path in paths.items()}
    return segment


def _linked(file: tuple[Path, Mark] | None, target: Path) -> bool:
    """Link a file to ``target`` and return whether that was possible: if it is as it was."""
    try:
        if file is None or _mark(file[0]) != file[1]:
            return False
        os.link(file[0], target)
    except OSError:  # gone, on another file system, or on one without links
        return False
    return True


def _mark(path: Path) -> Mark:
    """Return what identifies a file, not just its path: inode and time of writing."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def damaged(name: str, end: int) -> IndexFormatError:
    """Return the error for an array with a number beyond its range."""
    return IndexFormatError(
        f"{name}.npy of an FM-index has a number beyond {end - 1:,}; the file was edited: rebuild"
    )


def _marked(texts: TokenSequences) -> Ints:
    """Return all texts as symbols, each with its mark before."""
    text = np.empty(len(texts.ids) + len(texts), np.int32)
    marks = texts.bounds[:-1] + np.arange(len(texts))
    tokens = np.ones(len(text), np.bool_)
    tokens[marks] = False
    text[marks] = MARK
    text[tokens] = texts.ids + 1
    return text
