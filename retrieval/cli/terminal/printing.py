"""Prints results: hits around the words of the query, and tables that fit the terminal."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import typer

from sluice.retrieval.cli.terminal.messages import columns, echo, one_line, printable
from sluice.retrieval.documents.snippet import best_part, matches
from sluice.retrieval.evaluation.table import Table

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


# Columns that a narrow terminal leaves out, the first ones first; further measures go between.
BEFORE = ("bytes/doc", "indexed docs/s", "peak MB", "p99 ms", "queries/s")
AFTER = ("p50 ms", "index MB", "p95 ms")
MEASURES = 2  # shown of a table that does not fit
MEASURE_FORM = ".4f"  # how Table writes measures


def show(table: Table) -> list[str]:
    """Print a table that fits the terminal; return the columns that it leaves out."""
    text, left_out = fitted(table, columns())
    echo(text)
    return left_out


def fitted(table: Table, width: int) -> tuple[str, list[str]]:
    """Return a table as text at most ``width`` columns wide, and the columns it leaves out.

    Costs are left out before measures, and two measures stay. What is still too wide is
    written below, as further columns of the same systems.
    """
    dropped: list[str] = []
    for column in _droppable(table):
        if _width(table, dropped) <= width:
            break
        dropped.append(column)
    shown = [column for column in table.columns if column not in dropped]
    blocks = _blocks(table, shown, width)
    text = "\n\n".join(str(_part(table, block)) for block in blocks)
    left_out = [column for column in table.columns if column in dropped]
    if table.caption:
        text += "\n" + "\n".join(textwrap.wrap(table.caption, width, break_on_hyphens=False))
    return text, left_out


def _droppable(table: Table) -> list[str]:
    measures = [name for name, form in table.columns.items() if form == MEASURE_FORM]
    costs = [*BEFORE, *AFTER]
    if not any(column in costs for column in table.columns):
        return []  # not a table of systems and costs: all of it is shown
    order = [*BEFORE, *reversed(measures[MEASURES:]), *AFTER]
    return [column for column in order if column in table.columns]


def _width(table: Table, dropped: Collection[str]) -> int:
    shown = [column for column in table.columns if column not in dropped]
    return _widest(_part(table, shown))


def _widest(table: Table) -> int:
    return max(map(len, str(table).splitlines()))


def _part(table: Table, columns: Collection[str]) -> Table:
    """Return a table of some of the columns, without the caption."""
    forms = {name: form for name, form in table.columns.items() if name in columns}
    marks = {place: mark for place, mark in table.marks.items() if place[1] in forms}
    return Table(forms, table.rows, marks)


def _blocks(table: Table, columns: list[str], width: int) -> list[list[str]]:
    """Return the columns in groups that fit, at least one column in each."""
    blocks: list[list[str]] = [[]]
    for column in columns:
        if blocks[-1] and _widest(_part(table, [*blocks[-1], column])) > width:
            blocks.append([])
        blocks[-1].append(column)
    return blocks
