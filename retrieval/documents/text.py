"""What a text shows: its headings, and where in it the words of a query are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
UNDERLINE = re.compile(r" {0,3}(=+|-{2,})[ \t]*$")
# A line that an underline of hyphens does not make a heading: a list, a quotation, a table, code.
NO_TITLE = re.compile(r"\s*([-*+>|]|\d+[.)]\s)|\t| {4}|\s*$")


class Heading(NamedTuple):
    """A heading: its characters ``start`` to ``end``, its level from 1 and its title."""

    start: int
    end: int
    level: int
    title: str


def headings(text: str) -> Iterator[Heading]:
    """Yield the headings: lines that begin with ``#``, and lines underlined by ``===`` or ``---``.

    Inside fenced code there are none. An underlined title has one line, after a blank one.
    """
    fence = ""
    place = 0
    before, title = "", ("", 0)  # the line before the last, and the last with its place
    for line in text.splitlines(keepends=True):
        bare = line.rstrip("\r\n")
        opened = FENCE.match(bare)
        if fence:
            if opened and opened[1].startswith(fence) and not bare.strip(" `~"):
                fence = ""
        elif opened:
            fence = opened[1]
        elif found := ATX.match(bare):
            yield Heading(place, place + len(line), len(found[1]), (found[2] or "").strip())
            bare = ""
        elif (
            (found := UNDERLINE.match(bare))
            and not before.strip()
            and not NO_TITLE.match(title[0])
            and not FENCE.match(title[0])
        ):
            level = 1 if "=" in found[1] else 2
            yield Heading(title[1], place + len(line), level, title[0].strip())
            bare = ""
        before, title = title[0], (bare, place)
        place += len(line)


def section_starts(text: str) -> list[int]:
    """Return where the sections of a text begin: at 0, and at each heading that has text below it.

    A heading right below another one belongs to the same section.
    """
    starts = [0]
    end = 0  # of the last heading
    for heading in headings(text):
        if text[end : heading.start].strip() and heading.start > 0:
            starts.append(heading.start)
        end = heading.end
    return starts


PIECE = re.compile(r"\w+|[^\w\s]")
CHARACTERS = 4  # of a token, about


def word_pieces(text: str) -> int:
    """Return the number of words and marks of a text: fewer than most models have tokens."""
    return len(PIECE.findall(text))


def tokens_of(text: str) -> int:
    """Return about how many tokens a model reads: words and marks, or a quarter of characters."""
    return max(word_pieces(text), -(-len(text) // CHARACTERS))


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
