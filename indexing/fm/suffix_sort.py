"""The suffix array of a text of whole numbers, in linear time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sluice.indexing.fm.kernels import induce, leftmost_places, name_substrings, type_suffixes

Ints = NDArray[np.int32]


def suffix_array(text: Ints, symbols: int) -> Ints:
    """Return the places of a text's suffixes in ascending order; a prefix is before its longer.

    ``text`` has at least one number, each from 0 to ``symbols`` - 1. Takes some 15 bytes a number
    beside the text. (Nong, Zhang and Chan, 2009, Linear suffix array construction by almost pure
    induced sorting.)
    """
    length = len(text)
    smaller = np.empty(length, np.uint8)
    larger_first = np.zeros(symbols + 1, np.int64)
    smaller_first = np.zeros(symbols + 1, np.int64)
    count = type_suffixes(text, smaller, larger_first, smaller_first)
    leftmost, suffixes = np.empty(count, np.int32), np.empty(length, np.int32)
    leftmost_places(smaller, leftmost)
    induce(text, smaller, larger_first, smaller_first, leftmost, suffixes)
    if count > 1:
        names = np.empty(count, np.int32)
        halves = np.empty((length + 1) // 2, np.int32)
        different = name_substrings(text, smaller, suffixes, leftmost, halves, names)
        del halves
        if different == count:
            order = np.empty(count, np.int32)
            order[names] = np.arange(count, dtype=np.int32)
        else:
            order = suffix_array(names, different)
        induce(text, smaller, larger_first, smaller_first, leftmost[order], suffixes)
    return suffixes
