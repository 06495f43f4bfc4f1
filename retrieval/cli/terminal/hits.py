"""Prints hits: a title, the passage, and the words of the query where they stand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from sluice.retrieval.cli.terminal.messages import echo, one_line, printable
from sluice.retrieval.documents.snippet import best_part, matches

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.hit import Hit

LENGTH = 240  # characters of a document that are shown
PASSAGE_LENGTH = 480  # of a passage, which is the answer
INDENT = "     "


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
    places = matches(line, query)
    first, last = best_part(line, places, length)
    parts, done = [], first
    for start, end, _ in places if mark else ():
        if max(first, done) <= start and end <= last:
            parts += [line[done:start], typer.style(line[start:end], bold=True)]
            done = end
    parts.append(line[done:last])
    return ("... " if first else "") + "".join(parts) + (" ..." if last < len(line) else "")
