"""Reads tables: csv, tsv, JSON lines, JSON, Parquet, Arrow, Feather and SQLite files."""

from __future__ import annotations

import csv
import io
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.foundation.bounded_input import (
    FREE,
    LONGEST,
    RATIO,
    check_file,
    open_bytes,
    too_long,
)
from sluice.encoders.foundation.errors import DataError, listed, suggest
from sluice.retrieval.documents.json_files import json_items, read_objects
from sluice.retrieval.documents.readers.documents import Documents, Placed, contents_of
from sluice.retrieval.documents.readers.fields import (
    ID,
    LIKELY_TEXT,
    SAMPLE,
    TEXT,
    TITLE,
    Asked,
    Row,
    Rows,
    check_names,
    choose,
)
from sluice.retrieval.documents.readers.files.folder import FALLBACK, encoding_of

# A view computes what it likes: as many steps as no honest one of a file of this size takes.
STEPS = 200_000_000
STEPS_PER_BYTE = 1_000
BETWEEN = 1_000_000  # steps between two looks


def columns_of(path: Path, table: str | None) -> tuple[str, list[str], str | None]:
    """Return the names of the table, the only one where ``table`` is None, and of its columns.

    The last is the column that is its primary key, None without, and where it is of several.
    """
    query = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE ?"
    with _connected(path) as connection:
        try:
            tables = [str(name) for (name,) in connection.execute(query, ("sqlite_%",))]
        except sqlite3.DatabaseError as error:
            raise DataError(f"{path}: not an SQLite file ({error})") from None
        if table is None and len(tables) != 1:
            raise DataError(
                f"{path}: {len(tables)} tables ({listed(tables)}); name one: "
                f"{path.name}#{tables[0] if tables else 'TABLE'}"
            )
        name = tables[0] if table is None else table
        if name not in tables:
            raise DataError(
                f"{path}: no table {name!r}; its tables are {listed(tables)}{suggest(name, tables)}"
            )
        try:
            cursor = connection.execute(f"SELECT * FROM {_quoted(name)} LIMIT 0")
        except sqlite3.DatabaseError as error:  # a view over a table that is gone
            raise DataError(
                f"{path}#{name}: cannot be read ({error}); name another table, or copy what it "
                "shows into one"
            ) from None
        facts = connection.execute(f"PRAGMA table_info({_quoted(name)})")
        keys = [str(fact[1]) for fact in facts if fact[5]]
        return name, [c[0] for c in cursor.description], keys[0] if len(keys) == 1 else None


def sqlite_rows(path: Path, name: str, columns: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Stream the rows of a table; ``DataError`` for more than a file of its size can hold."""
    most = max(FREE, RATIO * path.stat().st_size)
    size = 0
    with _connected(path) as connection:
        try:
            for number, values in enumerate(connection.execute(f"SELECT * FROM {_quoted(name)}")):
                size += sum(len(value) for value in values if isinstance(value, (str, bytes)))
                if size > most:
                    raise sqlite3.DataError(f"more than {RATIO} times the size of the file")
                yield f"{path}#{name}: row {number}", dict(zip(columns, values, strict=True))
        except sqlite3.Error as error:
            text = "takes too long" if "interrupted" in str(error) else error
            raise DataError(
                f"{path}#{name}: cannot be read any further ({text}); if it is a view, copy what "
                "you need of it to a table"
            ) from None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file for reading only: a path with a typing mistake makes no new file.

    Functions with effects are not for its views, a value is at most ``LONGEST`` bytes, and the
    steps of a statement are counted.
    """
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error as error:
        raise DataError(f"{path}: cannot be opened as SQLite ({error})") from None
    looks = (STEPS + STEPS_PER_BYTE * path.stat().st_size) // BETWEEN

    def counted() -> int:
        nonlocal looks
        looks -= 1
        return int(looks < 0)

    try:
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
        connection.set_progress_handler(counted, BETWEEN)
        yield connection
    finally:
        connection.close()


FORMS = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".json": "json", ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".ipc": "arrow",
    ".feather": "arrow", ".db": "sqlite", ".sqlite": "sqlite", ".sqlite3": "sqlite",
}  # fmt: skip
BATCH = 1024  # rows decoded together
DELIMITERS = ",;\t|"
HEADLESS = ("id", "text")  # a tsv file of two columns without a header, such as MS MARCO's
EXPECTED = "{'id': ..., 'title': ..., 'text': ...}"


class Table(NamedTuple):
    """A function that streams the rows, and the names of their columns, if known beforehand."""

    rows: Callable[[], Rows]
    names: Sequence[str] = ()
    parsed: bool = False  # whether all values are texts
    note: str = ""
    key: str | None = None  # the column of the primary key


def form_of_table(path: Path) -> str | None:
    """Return ``csv``, ``tsv``, ``jsonl``, ... by a file's name, ``.gz`` or not; None for others."""
    name = path.name.lower()
    form = FORMS.get(Path(name.removesuffix(".gz")).suffix)
    return None if name.endswith(".gz") and form in ("parquet", "arrow", "sqlite") else form


def documents_in_tables(
    name: str, root: Path, files: Sequence[Path], asked: Asked, *, table: str | None = None
) -> Documents:
    """Return the documents of a table in one file, or in several of equal columns.

    ``table`` names one of an SQLite file's. Rows without an id are numbered from 0; in several
    files the number follows the file's path.
    """
    if len(files) == 1:
        opened = open_table(files[0], table)
    else:
        parts = [open_table(file, table) for file in files]
        opened = parts[0]._replace(rows=lambda: chain.from_iterable(p.rows() for p in parts))
    sample = [row for _, row in islice(opened.rows(), SAMPLE)]
    if not sample:
        raise DataError(f"{name}: no rows; expected one document a row")
    found = dict.fromkeys(str(key) for row in sample for key in row)
    names = list(opened.names) or list(found)
    key = opened.key  # the id, where nobody names another column
    if key and asked.id is None and all(isinstance(row[key], int | str) for row in sample):
        asked = asked._replace(id=key)
    fields = choose(name, names, sample, asked, parsed=opened.parsed)

    def read() -> Placed:
        if len(files) == 1 or fields.id is not None:
            yield from fields.documents(name, opened.rows())
            return
        for file, part in zip(files, parts, strict=True):
            prefix = f"{file.relative_to(root).as_posix()}:"
            yield from fields.documents(str(file), part.rows(), prefix=prefix)

    described = name if len(files) == 1 else f"{name}: {len(files):,} files"
    return Documents(
        name,
        read,
        described=f"{described}: {fields.describe()}{opened.note}",
        contents=lambda: contents_of(root, [*files, *_logs(files)], asked, table),
        guessed=True,
        numbered=fields.id is None,
    )


def _logs(files: Sequence[Path]) -> list[Path]:
    """Return the write-ahead logs of SQLite files, which hold what was committed last."""
    logs = [Path(f"{file}-wal") for file in files if form_of_table(file) == "sqlite"]
    return [log for log in logs if log.is_file() and log.stat().st_size]


def open_table(path: Path, table: str | None = None) -> Table:
    """Return the table of a file; ``DataError`` for one that is empty or not what its name says."""
    form = form_of_table(path)
    if table is not None and form != "sqlite":
        raise DataError(
            f"{path}#{table}: only SQLite files have tables to name; leave #{table} out"
        )
    check_file(path)
    if form in ("csv", "tsv", "jsonl", "json") and not _has_text(path):
        raise DataError(f"{path}: empty; expected one document a row")
    if form == "csv":
        return _csv_table(path)
    if form == "tsv":
        return _tsv_table(path)
    if form == "sqlite":
        name, columns, key = columns_of(path, table)
        return Table(lambda: sqlite_rows(path, name, columns), columns, key=key)
    if form == "parquet":
        return Table(lambda: parquet_rows(path))
    if form == "arrow":
        return Table(lambda: arrow_rows(path))
    if form == "json" and _first_character(path) == "[":
        return Table(lambda: _json_rows(path))
    return Table(lambda: ((f"{path}:{n}", value) for n, value in read_objects(path, EXPECTED)))


def _has_text(path: Path) -> bool:
    return _first_character(path) != ""


def _first_character(path: Path) -> str:
    try:
        with open_bytes(path) as stream:
            while block := stream.read(4096):
                text = block.lstrip(b"\xef\xbb\xbf \t\r\n")
                if text:
                    return chr(text[0])
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    return ""


def _json_rows(path: Path) -> Rows:
    for number, item in enumerate(json_items(path)):
        if not isinstance(item, Mapping):
            raise DataError(
                f"{path}: item {number} is a JSON {type(item).__name__}; expected an object: "
                f"{EXPECTED}"
            )
        yield f"{path}: item {number}", item


def text_lines(path: Path, encoding: str) -> Iterator[str]:
    """Stream the lines of a text file with their ends, blank ones too: a quoted text holds both."""
    number = 0
    try:
        with io.TextIOWrapper(open_bytes(path), encoding, "replace", newline="") as stream:
            while line := stream.readline(LONGEST + 1):
                number += 1
                if len(line) > LONGEST:
                    raise too_long(f"{path}:{number}: the line")
                yield line
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: the rest cannot be read ({error}); fetch the file again"
        ) from None


def _recoded(encoding: str) -> str:
    return "; not UTF-8, so read as Windows-1252" if encoding == FALLBACK else ""


def _csv_table(path: Path) -> Table:
    encoding = encoding_of(path)
    lines = text_lines(path, encoding)
    header = next((line for line in lines if line.strip(f'{DELIMITERS}" \r\n')), "")
    unquoted = "".join(header.split('"')[::2])
    delimiter = max(DELIMITERS, key=lambda mark: (unquoted.count(mark), mark == ","))
    names = _column_names(path, next(csv.reader([header], delimiter=delimiter)))

    def rows() -> Rows:
        lines = csv_rows(path, text_lines(path, encoding), delimiter)
        filled = ((number, fields) for number, fields in lines if any(map(str.strip, fields)))
        next(filled, None)  # the header
        for number, fields in filled:
            yield f"{path}:{number}", _row(path, number, names, fields)

    return Table(rows, names, True, _recoded(encoding))


def csv_rows(path: Path, lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Stream (number of its last line, fields) of the rows; ``DataError`` names a line.

    A row is at most ``LONGEST`` characters: a quotation mark that is never closed would make one
    of the rest of the file.
    """
    size = 0

    def counted() -> Iterator[str]:  # apart from the reader, so that a fault closes the file
        nonlocal size
        for number, line in enumerate(lines, 1):
            size += len(line)
            if size > LONGEST:
                raise too_long(f"{path}:{number}: the row, whose quotation mark may not be closed,")
            yield line

    csv.field_size_limit(LONGEST)
    reader = csv.reader(counted(), delimiter=delimiter, strict=True)
    try:
        for fields in reader:
            yield reader.line_num, fields
            size = 0
    except csv.Error as error:
        raise DataError(
            f"{path}:{reader.line_num}: not valid csv ({error}); quote texts that hold "
            f"{delimiter!r}, quotation marks or line breaks"
        ) from None


def _tsv_table(path: Path) -> Table:
    encoding = encoding_of(path)
    first = next((line for line in text_lines(path, encoding) if line.strip()), "")
    cells = first.rstrip("\r\n").split("\t")
    known = {*ID, *TEXT, *TITLE, *LIKELY_TEXT}
    headless = len(cells) == 2 and not any(cell.strip().lower() in known for cell in cells)
    names = list(HEADLESS) if headless else _column_names(path, cells)

    def rows() -> Rows:
        skip = not headless
        for number, line in enumerate(text_lines(path, encoding), 1):
            if not line.strip():
                continue
            if skip:
                skip = False
                continue
            yield f"{path}:{number}", _row(path, number, names, line.rstrip("\r\n").split("\t"))

    note = "; no header: columns are id and text" if headless else ""
    return Table(rows, names, True, note + _recoded(encoding))


def _column_names(path: Path, cells: Sequence[str]) -> list[str]:
    names = [cell.strip() or f"column {place}" for place, cell in enumerate(cells, 1)]
    check_names(path, names)
    return names


def _row(path: Path, number: int, names: Sequence[str], fields: Sequence[str]) -> Row:
    if len(fields) != len(names):
        raise DataError(
            f"{path}:{number}: {len(fields)} fields, but {len(names)} columns in the first line; "
            "quote texts that hold the separator, or add what is missing"
        )
    return dict(zip(names, fields, strict=True))


def parquet_rows(path: Path) -> Rows:
    """Stream the rows of a Parquet file."""
    from pyarrow import parquet

    def batches() -> Iterator[Any]:
        with parquet.ParquetFile(path) as file:
            yield from file.iter_batches(BATCH)

    return _arrow_rows(path, batches, "Parquet")


def arrow_rows(path: Path) -> Rows:
    """Stream the rows of an Arrow file or stream (Feather version 2 is such a file)."""
    import pyarrow as pa

    def batches() -> Iterator[Any]:
        with pa.memory_map(str(path)) as source:
            try:
                file = pa.ipc.open_file(source)
            except pa.ArrowInvalid:
                source.seek(0)
                yield from pa.ipc.open_stream(source)
                return
            for number in range(file.num_record_batches):
                yield file.get_batch(number)

    return _arrow_rows(path, batches, "Arrow")


def _arrow_rows(path: Path, batches: Callable[[], Iterator[Any]], form: str) -> Rows:

    row = 0
    try:
        for batch in batches():
            check_names(path, batch.schema.names)
            for start in range(0, batch.num_rows, BATCH):
                for fields in batch.slice(start, BATCH).to_pylist():
                    yield f"{path}: row {row}", fields
                    row += 1
    except DataError:
        raise
    except Exception as error:  # Arrow's own, and Python's at dates, numbers and depths of a value
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"{path}: row {row}: not readable as {form} ({first:.300}); write the file again"
        ) from None
