"""Kernels of the FM-index: sorting suffixes, next tokens of a range, reading texts back."""

# mypy: disable-error-code="arg-type, assignment, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sluice.indexing.kernels.ranking import put

Bounds = NDArray[np.int64]
Flags = NDArray[np.uint8]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def type_suffixes(text: Ints, smaller: Flags, larger_first: Bounds, smaller_first: Bounds) -> int:
    """Mark suffixes that are smaller than the next one; return the number of leftmost such ones.

    Into ``larger_first[c]`` and ``smaller_first[c]`` go the places in the suffix array of the
    first suffix of each kind that begins with c; both are zero before, and have one entry more than
    there are symbols. The empty suffix is the smallest.
    """
    length, symbols = len(text), len(larger_first) - 1
    smaller[length - 1] = 0
    leftmost = 0
    for place in range(length - 2, -1, -1):
        own, following = text[place], text[place + 1]
        if own == following:
            smaller[place] = smaller[place + 1]
        else:
            smaller[place] = own < following
        if smaller[place + 1] and not smaller[place]:
            leftmost += 1
    for place in range(length):
        if smaller[place]:
            smaller_first[text[place]] += 1
        else:
            larger_first[text[place]] += 1
    total = 0
    for symbol in range(symbols):
        larger, less = larger_first[symbol], smaller_first[symbol]
        larger_first[symbol] = total
        smaller_first[symbol] = total + larger
        total += larger + less
    larger_first[symbols] = smaller_first[symbols] = total
    return leftmost


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def induce(
    text: Ints,
    smaller: Flags,
    larger_first: Bounds,
    smaller_first: Bounds,
    leftmost: Ints,
    suffixes: Ints,
) -> None:
    """Sort all suffixes by the order of the leftmost smaller ones (Nong et al. 2009, section 3).

    Where those are in order of place only, the result orders substrings between them.
    """
    length = len(text)
    symbols = len(larger_first) - 1
    suffixes[:] = -1
    heads = smaller_first.copy()
    for place in leftmost:
        suffixes[heads[text[place]]] = place
        heads[text[place]] += 1
    put(heads, larger_first)
    last = text[length - 1]
    suffixes[heads[last]] = length - 1
    heads[last] += 1
    for at in range(length):
        place = suffixes[at] - 1
        if place >= 0 and not smaller[place]:
            suffixes[heads[text[place]]] = place
            heads[text[place]] += 1
    for symbol in range(symbols):  # from the ends of the ranges backwards
        heads[symbol] = larger_first[symbol + 1]
    for at in range(length - 1, -1, -1):
        place = suffixes[at] - 1
        if place >= 0 and smaller[place]:
            heads[text[place]] -= 1
            suffixes[heads[text[place]]] = place


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def leftmost_places(smaller: Flags, places: Ints) -> None:
    """Write the places of leftmost smaller suffixes, ascending."""
    number = 0
    for place in range(1, len(smaller)):
        if smaller[place] and not smaller[place - 1]:
            places[number] = place
            number += 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def name_substrings(
    text: Ints, smaller: Flags, suffixes: Ints, leftmost: Ints, halves: Ints, names: Ints
) -> int:
    """Number the substrings between leftmost places by their order; return how many differ.

    ``names[i]`` is that of ``leftmost[i]``. ``halves`` is scratch of half the text's length: no
    two leftmost places are neighbours.
    """
    length, count = len(text), len(leftmost)
    for number in range(count):
        halves[leftmost[number] >> 1] = number
    name, previous, previous_size = -1, -1, 0
    for at in range(length):
        place = suffixes[at]
        if place == 0 or not smaller[place] or smaller[place - 1]:
            continue
        number = halves[place >> 1]
        last = number + 1 == count  # ends with the text, so it is like no other
        size = 0 if last else leftmost[number + 1] + 1 - place
        same = not last and size == previous_size
        if same:
            for offset in range(size):
                if text[place + offset] != text[previous + offset]:
                    same = False
                    break
        if not same:
            name += 1
        names[number] = name
        previous, previous_size = place, size
    return name + 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def finish(text: Ints, suffixes: Ints, starts: Bounds, following: Ints, lists: Ints) -> None:
    """Make places of the text as it is read of ``suffixes``, and write what each is followed by.

    ``text`` is the reversed one. ``lists`` are, for each symbol c from ``starts[c]`` on, the rows
    that c follows, ascending.
    """
    length = len(text)
    heads = starts.copy()
    for row in range(length):
        place = suffixes[row]
        symbol = text[place - 1] if place > 0 else 0
        following[row] = symbol
        lists[heads[symbol]] = row
        heads[symbol] += 1
        suffixes[row] = length - 1 - place


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def count_following(
    following: Ints, first: int, last: int, sign: int, seen: Ints, symbols: Ints, distinct: int
) -> int:
    """Add ``sign`` in ``seen`` for each symbol of a range; return how many differ so far.

    Those that were zero are written to ``symbols`` from ``distinct`` on. -1 for a symbol beyond
    ``seen``, or more of them than there is room for: the file is not as it was written.
    """
    for row in range(first, last):
        symbol = following[row]
        if symbol < 0 or symbol >= len(seen):
            return -1
        if seen[symbol] == 0:
            if distinct == len(symbols):
                return -1
            symbols[distinct] = symbol
            distinct += 1
        seen[symbol] += sign
    return distinct


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def read_texts(
    following: Ints, lists: Ints, starts: Bounds, rows: Ints, ids: Ints, bounds: Bounds
) -> bool:
    """Write the symbols of texts, less 1: ``rows`` are those of the marks before them.

    False where a number is beyond its range: the file is not as it was written.
    """
    for number in range(len(rows)):
        row = np.int64(rows[number])
        for place in range(bounds[number], bounds[number + 1]):
            if row >= len(following):
                return False
            symbol = following[row]
            if symbol < 1 or symbol >= len(starts) - 1:
                return False
            ids[place] = symbol - 1
            low, high = starts[symbol], starts[symbol + 1]
            while low < high:
                middle = (low + high) >> 1
                if lists[middle] < row:
                    low = middle + 1
                else:
                    high = middle
            row = low
    return True


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
