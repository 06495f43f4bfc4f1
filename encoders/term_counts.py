"""Texts to counts of their terms, a chunk of texts at a time."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from encoders.analysis import CACHED_WORDS, Analyzer
from encoders.errors import DataError

CHUNK_WORDS = 1 << 19  # about 20 MB of working arrays
LEFT_OUT, UNKNOWN = -1, -2  # in place of a column: no term; a term without a column
Integers = np.ndarray[tuple[int], np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class TermCounts:
    """The distinct terms of each of some texts, one text after the other, columns ascending."""

    terms: Integers  # [entries] int32, columns of the vocabulary
    counts: Integers  # [entries] int32, how often the term stands in its text
    sizes: Integers  # [texts] int64, entries of each text
    lengths: Integers  # [texts] int64, terms of each text, those without a column included


class _Columns(dict[str, int]):
    """Word to column: one look-up for each word of a text instead of two."""

    def __init__(self, term: Callable[[str], str], column: Callable[[str], int | None]) -> None:
        super().__init__()
        self._term, self._column = term, column

    def __missing__(self, word: str) -> int:
        if len(self) >= CACHED_WORDS:
            self.clear()
        column: int | None = LEFT_OUT
        if term := self._term(word):
            column = self._column(term)
        self[word] = found = UNKNOWN if column is None else column
        return found


def counted(
    texts: Iterable[str], analyzer: Analyzer, column: Callable[[str], int | None]
) -> Iterator[TermCounts]:
    """Yield the counts of ``texts`` in chunks of about half a million words.

    ``column`` gives a term's column, or None to leave it out of all but the length. Raises
    ``DataError`` for what is not a text.
    """
    if isinstance(texts, str):
        raise DataError("texts: a single str; expected several texts: put it into a list")
    split, column_of = analyzer.words, _Columns(analyzer.term, column).__getitem__
    columns, sizes = array("i"), array("q")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"texts[{place}]: {type(text).__name__}; expected str")
        words = split(text)
        columns.extend(map(column_of, words))
        sizes.append(len(words))
        if len(columns) >= CHUNK_WORDS:
            yield _chunk(columns, sizes)
            columns, sizes = array("i"), array("q")
    if sizes:
        yield _chunk(columns, sizes)


def _chunk(columns: array[int], sizes: array[int]) -> TermCounts:
    texts = len(sizes)
    column = np.array(columns, dtype=np.int64)
    text = np.repeat(np.arange(texts, dtype=np.int64), np.array(sizes, dtype=np.int64))
    lengths = np.bincount(text[column != LEFT_OUT], minlength=texts)
    # One sort of (text, column) as a single integer brings equal terms of a text together.
    keys = ((text << 32) | column)[column >= 0]
    keys.sort()
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    distinct = keys[first]
    return TermCounts(
        terms=(distinct & 0xFFFFFFFF).astype(np.int32),
        counts=np.diff(first, append=len(keys)).astype(np.int32),
        sizes=np.bincount(distinct >> 32, minlength=texts),
        lengths=lengths,
    )
