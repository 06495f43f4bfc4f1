"""Prints hits: a title, the passage, and the words of the query where they stand."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from sluice.retrieval.cli.terminal.output import echo, one_line, printable

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.hit import Hit

LENGTH = 240  # characters of a document that are shown
PASSAGE_LENGTH = 480  # of a passage, which is the answer
INDENT = "     "
LONGEST_WORD = 40  # characters; a longer one is text without spaces
WORD = re.compile(r"\w+")

Places = list[tuple[int, int, str]]  # first character, one after the last, term


def print_hits(
    hits: Sequence[Hit], query: str, *, as_json: bool = False, several: bool = False
) -> None:
    """Print hits, best first: as JSON lines with everything, or the words around the query's.

    With ``several`` queries each is named with its hits.
    """
    if as_json:
        facts = {"query": query} if several else {}
        for hit in hits:
            typer.echo(json.dumps({**facts, **hit.as_dict()}, ensure_ascii=False))
        return
    if several:
        echo(f"> {query}")
    for rank, hit in enumerate(hits, 1):
        title = f"  {' '.join(hit.title.split())}" if hit.title.strip() else ""
        echo(f"{rank:>3}  {hit.score:9.4f}  {one_line(hit.doc_id)}{title}")
        text, length = hit.text, LENGTH
        if hit.passage is not None:
            number, start, end, text = hit.passage
            length = PASSAGE_LENGTH
            if (start, end) != (0, len(hit.text)):
                echo(f"{INDENT}passage {number}, characters {start:,} to {end:,}")
        if text.strip():
            # As it is: the words in bold are terminal sequences of our own.
            typer.echo(f"{INDENT}{snippet(text, query, length, mark=True)}")
    if not hits:
        echo("no hits")


def snippet(text: str, query: str, length: int = LENGTH, *, mark: bool = False) -> str:
    """Return the part of a text, at most ``length`` characters, with most words of the query.

    White space is one space, no word is cut, and ``...`` stands for what is left out. English word
    forms match each other. Without any word of the query it is the beginning. ``mark`` prints the
    words in bold on a terminal. Control characters are shown.
    """
    line = printable(" ".join(text.split()))
    places = _matches(line, query)
    first, last = _window(line, places, length)
    parts, done = [], first
    for start, end, _ in places if mark else ():
        if max(first, done) <= start and end <= last:
            parts += [line[done:start], typer.style(line[start:end], bold=True)]
            done = end
    parts.append(line[done:last])
    return ("... " if first else "") + "".join(parts) + (" ..." if last < len(line) else "")


def _matches(line: str, query: str) -> Places:
    """Return the words of a line that are words of the query, stop words left out."""
    from sluice.encoders.lexical.analyzer import analyzer

    english = analyzer("en")
    asked = set(english(query))
    found: Places = []
    for word in WORD.finditer(line):
        long = word.end() - word.start() > LONGEST_WORD
        if not long and (terms := asked.intersection(english(word.group()))):
            found.append((*word.span(), min(terms)))
    if found:
        return found
    # Words that are not between spaces, as in Chinese, stand inside of others.
    for part in query.split():
        found += [(*place.span(), part) for place in re.finditer(re.escape(part), line)]
    return sorted(found)


def _window(line: str, places: Places, length: int) -> tuple[int, int]:
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
