"""Writes CSV for people: a spreadsheet runs no formula that a text begins with."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable

# What spreadsheets take for the beginning of a formula. An apostrophe before it is doubled, so that
# taking one away from a cell that matches gives the text back.
FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as comma-separated lines; numbers stay as they are, None is an empty cell.

    A text that begins with ``=``, ``+``, ``-``, ``@``, a tab or a line end has an apostrophe before
    it, unless it is a number: spreadsheets then show it and run nothing.
    """
    return "".join(_line(row) for row in rows)


def _line(row: Iterable[object]) -> str:
    stream = io.StringIO()
    csv.writer(stream).writerow([_cell(each) for each in row])  # \r\n, so that both are quoted
    return stream.getvalue().removesuffix("\r\n") + "\n"


def _cell(value: object) -> object:
    if not isinstance(value, str) or not FORMULA.match(value) or _is_number(value):
        return value
    return f"'{value}"


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?", text, re.ASCII | re.IGNORECASE) is not None
