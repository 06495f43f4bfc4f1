"""Finds the words of a query in a text, and the part of the text with most of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

LONGEST_QUERY, MOST_WORDS = 2_000, 100  # characters and words of a query that are looked for
MOST_READ = 200_000  # characters of a line, in which a tenth of a second finds words
MOST_MARKED = 20_000  # characters, from the first word that is found
LONGEST_WORD = 40  # characters; a longer one is text without spaces
WORD = re.compile(r"\w+")

Places = Sequence[tuple[int, int, str]]  # first character, one after the last, term


def matches(line: str, query: str) -> Places:
    """Return the words of a line that are words of the query, stop words left out.

    None of them overlaps another. Bounded are the words of the query, and the part of the line.
    """
    from sluice.encoders.lexical.analyzer import analyzer

    line, english = line[:MOST_READ], analyzer("en")
    words = query[:LONGEST_QUERY].split()[:MOST_WORDS]
    asked = set(english(" ".join(words)))
    met: dict[str, str] = {}  # a word's term of the query, empty for none: texts repeat their words
    found: list[tuple[int, int, str]] = []
    for place in WORD.finditer(line):
        if found and place.start() > found[0][0] + MOST_MARKED:
            break
        word = place.group()
        if len(word) > LONGEST_WORD:
            continue
        term = met.get(word)
        if term is None:
            term = met[word] = min(asked.intersection(english(word)), default="")
        if term:
            found.append((*place.span(), term))
    if found:
        return found
    # Words that are not between spaces, as in Chinese, stand inside of others.
    firsts = {part: line.find(part) for part in words}
    parts = sorted((part for part, at in firsts.items() if at >= 0), key=len, reverse=True)
    if not parts:
        return []
    start = min(firsts[part] for part in parts)
    longest_first = re.compile("|".join(map(re.escape, parts)))
    found_parts = longest_first.finditer(line, start, start + MOST_MARKED)
    return [(*place.span(), place.group()) for place in found_parts]


def best_part(line: str, places: Places, length: int) -> tuple[int, int]:
    """Return where the part with most different words of the query begins and ends."""
    if len(line) <= length:
        return 0, len(line)
    best, first = (0, 0), 0
    stop, inside = 0, Counter[str]()  # the terms of the places from ``number`` up to ``stop``
    for number, (start, _, term) in enumerate(places):
        stop = max(stop, number)
        while stop < len(places) and places[stop][1] <= start + length:
            inside[places[stop][2]] += 1
            stop += 1
        if stop == number:  # longer than the part
            continue
        if (len(inside), stop - number) > best:
            best = len(inside), stop - number
            first = max(0, start - (length - (places[stop - 1][1] - start)) // 2)
        inside[term] -= 1
        if not inside[term]:
            del inside[term]
    first = min(first, len(line) - length)
    if first > 0 and line[first - 1] != " ":  # at a word's beginning, if one is near
        space = line.find(" ", first, first + length // 4)
        first = space + 1 if space >= 0 else first
    last = min(len(line), first + length)
    if last < len(line) and line[last] != " ":
        space = line.rfind(" ", first + 3 * length // 4, last)
        last = space if space >= 0 else last
    return first, last
