"""A spreadsheet runs nothing that is in a CSV file, and no text is lost in it."""

import csv
import io

import pytest

from sluice.encoders.foundation.disk.figures import FORMULA, csv_text


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=cmd|'/c calc'!A1", "'=cmd|'/c calc'!A1"),
        ("+1+1", "'+1+1"), ("-a", "'-a"), ("@SUM(A1)", "'@SUM(A1)"), ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"), ("\uff1d1", "'\uff1d1"), ("'=1", "''=1"),
        ("doc-7", "doc-7"), ("'tis", "'tis"), ("", ""), ("-12", "-12"), ("+1.5e-3", "+1.5e-3"),
        (-0.25, "-0.25"), (3, "3"), (None, ""),
    ],
)  # fmt: skip
def test_cells(cell: str | float | None, written: str) -> None:
    text = csv_text([["name", "value"], ["x", cell]])
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert rows == [["name", "value"], ["x", written]]
    if isinstance(cell, str) and written != cell:  # taking one apostrophe away gives it back
        assert FORMULA.match(written)
        assert written[1:] == cell
    else:
        assert not FORMULA.match(written) or float(written)
