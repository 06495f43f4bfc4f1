"""Finds the words of a query in a text, and the part of the text with most of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

LONGEST_WORD = 40  # characters; a longer one is text without spaces
WORD = re.compile(r"\w+")

Places = Sequence[tuple[int, int, str]]  # first character, one after the last, term


def matches(line: str, query: str) -> Places:
    """Return the words of a line that are words of the query, stop words left out.

    None of them overlaps another.
    """
    from sluice.encoders.lexical.analyzer import analyzer

    english = analyzer("en")
    asked = set(english(query))
    found: list[tuple[int, int, str]] = []
    for word in WORD.finditer(line):
        long = word.end() - word.start() > LONGEST_WORD
        if not long and (terms := asked.intersection(english(word.group()))):
            found.append((*word.span(), min(terms)))
    if found:
        return found
    # Words that are not between spaces, as in Chinese, stand inside of others.
    parts = sorted((part for part in set(query.split()) if part in line), key=len, reverse=True)
    if not parts:
        return []
    longest_first = re.compile("|".join(map(re.escape, parts)))
    return [(*place.span(), place.group()) for place in longest_first.finditer(line)]


def best_part(line: str, places: Places, length: int) -> tuple[int, int]:
    """Return where the part with most different words of the query begins and ends."""
    if len(line) <= length:
        return 0, len(line)
    best, first = (0, 0), 0
    stop = 0
    for number, (start, _, _) in enumerate(places):
        stop = max(stop, number)
        while stop < len(places) and places[stop][1] <= start + length:
            stop += 1
        inside = [term for _, _, term in places[number:stop]]
        if (len(set(inside)), len(inside)) > best:
            best = len(set(inside)), len(inside)
            last = places[stop - 1][1] if stop > number else start + length
            first = max(0, start - (length - (last - start)) // 2)
    first = min(first, len(line) - length)
    if first > 0 and line[first - 1] != " ":  # at a word's beginning, if one is near
        space = line.find(" ", first, first + length // 4)
        first = space + 1 if space >= 0 else first
    last = min(len(line), first + length)
    if last < len(line) and line[last] != " ":
        space = line.rfind(" ", first + 3 * length // 4, last)
        last = space if space >= 0 else last
    return first, last
