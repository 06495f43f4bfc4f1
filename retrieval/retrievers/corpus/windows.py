"""Cuts long texts into overlapping windows of tokens or words."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LONGEST_WORD = 16  # tokens of a word that is never cut; what is longer is hardly a word
WORD = re.compile(r"\S+")

Places = NDArray[np.int64]
Spans = list[tuple[int, int]]


class Pieces(NamedTuple):
    """The tokens or words of a text, in order: their characters, and where words begin."""

    starts: Places  # [pieces] first character
    ends: Places  # [pieces] one after the last character
    begins: NDArray[np.bool_]  # [pieces] a passage may begin here

    def __len__(self) -> int:
        return len(self.starts)

    def characters(self, first: int, last: int) -> tuple[int, int]:
        """Return where pieces ``first`` to ``last``, the latter excluded, begin and end."""
        return int(self.starts[first]), int(self.ends[first:last].max())

    def cut(self, text: str, first: int, last: int) -> str:
        """Return the characters of pieces ``first`` to ``last``, the latter excluded."""
        start, end = self.characters(first, last)
        return text[start:end]


def word_pieces(texts: Sequence[str]) -> list[Pieces]:
    """Return the white-space words of texts."""
    found = []
    for text in texts:
        spans = np.array([word.span() for word in WORD.finditer(text)], dtype=np.int64)
        spans = spans.reshape(-1, 2)
        found.append(Pieces(spans[:, 0], spans[:, 1], np.ones(len(spans), dtype=np.bool_)))
    return found


class TokenPieces:
    """Cuts texts into a fast tokenizer's tokens, without special ones.

    It works on a copy: a tokenizer that others use keeps the length of their last call.
    """

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers import Tokenizer

        self._copy = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._copy.no_truncation()
        self._copy.no_padding()

    def __call__(self, texts: Sequence[str]) -> list[Pieces]:
        """Return the tokens of texts."""
        encoded = self._copy.encode_batch(list(texts), add_special_tokens=False)
        return [_pieces(each.offsets, each.word_ids) for each in encoded]

    def overhead(self, prompt: str) -> int:
        """Return how many tokens every text has besides its own: the prompt's and special ones."""
        return len(self._copy.encode(prompt).ids)


def _pieces(offsets: Sequence[tuple[int, int]], words: Sequence[int | None]) -> Pieces:
    places = np.array(offsets, dtype=np.int64).reshape(-1, 2)
    starts, ends = places[:, 0], places[:, 1]
    numbers = np.array([-1 if word is None else word for word in words], dtype=np.int64)
    begins = np.ones(len(starts), dtype=np.bool_)
    begins[1:] = (numbers[1:] != numbers[:-1]) | (numbers[1:] < 0)
    runs = np.diff(np.append(np.flatnonzero(begins), len(begins)))
    begins |= np.repeat(runs > LONGEST_WORD, runs)
    begins[1:] &= starts[1:] >= ends[:-1]  # several tokens of one character stay together
    return Pieces(starts, ends, begins)


def windows(begins: NDArray[np.bool_], length: int, overlap: int) -> Spans:
    """Return spans of at most ``length`` pieces that cover all, each from a word's beginning.

    Neighbours share ``overlap`` pieces, fewer where a word would be cut. The last window ends with
    the text and is as long as the others, so it may share more: no passage is a mere tail. A word
    that leaves a window nothing new is cut.
    """
    total = len(begins)
    if total <= length:
        return [(0, total)]
    borders = np.append(np.flatnonzero(begins), total).tolist()
    spans: Spans = []
    start = stop = 0
    while total - start > length:
        whole = borders[bisect_right(borders, start + length) - 1]
        stop = whole if whole > stop else start + length
        spans.append((start, stop))
        start = min(_next(borders, max(stop - overlap, start + 1)), stop)
    return [*spans, (min(_next(borders, total - length), start), total)]


def _next(borders: list[int], place: int) -> int:
    """Return the first border at ``place`` or after it."""
    return borders[bisect_left(borders, place)]
