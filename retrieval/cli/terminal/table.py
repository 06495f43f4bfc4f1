"""Fits a table of results into the width of a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Collection

from sluice.retrieval.evaluation.table import Table

# Columns that a narrow terminal leaves out, the first ones first; further measures go between.
BEFORE = ("bytes/doc", "indexed docs/s", "peak MB", "p99 ms", "queries/s")
AFTER = ("p50 ms", "index MB", "p95 ms")
MEASURES = 2  # shown of a table that does not fit
MEASURE_FORM = ".4f"  # how Table writes measures


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
    kept = {name: form for name, form in table.columns.items() if name in columns}
    marks = {place: mark for place, mark in table.marks.items() if place[1] in kept}
    return Table(kept, table.rows, marks)


def _blocks(table: Table, columns: list[str], width: int) -> list[list[str]]:
    """Return the columns in groups that fit, at least one column in each."""
    blocks: list[list[str]] = [[]]
    for column in columns:
        if blocks[-1] and _widest(_part(table, [*blocks[-1], column])) > width:
            blocks.append([])
        blocks[-1].append(column)
    return blocks
