"""Streams the raw rows of training files: JSON lines, csv, tsv and parquet."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.documents.jsonl import all_lines, read_lines, read_objects
from sluice.retrieval.documents.readers.fields import check_names
from sluice.retrieval.documents.readers.tables import csv_rows, parquet_rows
from sluice.retrieval.training_data.files.columns import is_header

Record = tuple[str, dict[str, Any]]  # file:line, and the fields by name

DELIMITERS = ";\t|"  # of csv files whose first line has no comma
FIRST_NAMES = {"query_id", "query-id", "qid"}  # of a header, beside the names of queries


def form_of(path: Path) -> str:
    """Return ``jsonl``, ``csv``, ``tsv`` or ``parquet`` by the file's name, ``.gz`` or not."""
    names = {".jsonl": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv", ".txt": "tsv"}
    names[".parquet"] = "parquet"
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix not in names:
        raise DataError(
            f"{path}: a file of examples is .jsonl, .csv, .tsv or .parquet (the first three also "
            f"with .gz), not {suffix or 'without an ending'}; rename it"
        )
    return names[suffix]


def read_records(path: Path, told: Collection[str] = ()) -> Iterator[Record]:
    """Stream the rows of a file as fields by name.

    ``told`` are names of columns that it has. A tsv file without a header, such as MS MARCO's, has
    fields named ``"0"``, ``"1"``, ... Only csv has quoting. Raises ``DataError`` with file and line
    for text that is not UTF-8, broken JSON, and a row with too many or too few fields.
    """
    form = form_of(path)
    if form == "jsonl":
        for number, value in read_objects(path, '{"query": ..., "pos": [...], "neg": [...]}'):
            yield f"{path}:{number}", value
    elif form == "parquet":
        yield from _parquet(path)
    elif form == "tsv":
        lines = ((n, line.split("\t")) for n, line in read_lines(path))
        yield from _named(path, lines, told)
    else:
        yield from _named(path, _csv(path), told)


def _named(
    path: Path, rows: Iterator[tuple[int, list[str]]], told: Collection[str]
) -> Iterator[Record]:
    names: list[str] | None = None
    csv_file = form_of(path) == "csv"
    for number, fields in rows:
        if names is None:
            first = fields[0].strip().lower()
            if first in FIRST_NAMES or is_header(fields, told, needed=csv_file):
                names = [field.strip() for field in fields]
                check_names(f"{path}:{number}", [name for name in names if name])
                continue
            if told:
                columns = ", ".join(repr(field[:40]) for field in fields[:8])
                raise DataError(
                    f"{path}:{number}: none of {', '.join(map(repr, told))} is in the first line, "
                    f"which has {columns}; the first line has to name the columns"
                )
            if csv_file:
                raise DataError(
                    f"{path}:{number}: begins with {fields[0]!r:.60}; expected a header with the "
                    "columns' names, as in query,positive,negative_1"
                )
            names = [str(place) for place in range(len(fields))]
        if len(fields) != len(names):
            raise DataError(
                f"{path}:{number}: {len(fields)} fields, but {len(names)} in the first line; every "
                "row needs as many (remove tabs and line breaks inside texts)"
            )
        yield f"{path}:{number}", dict(zip(names, fields, strict=True))


def _csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    stream = (line for _, line in all_lines(path))
    first = next(stream, "")
    others = [mark for mark in DELIMITERS if mark in first and "," not in first]
    for number, fields in csv_rows(path, chain([first], stream), (others or [","])[0]):
        if fields:
            yield number, fields


def _parquet(path: Path) -> Iterator[Record]:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    for place, fields in parquet_rows(path):
        yield place, dict(fields)
