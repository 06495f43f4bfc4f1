"""Reads a table or view of an SQLite file, which may be made to take all time or memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import DataError, listed, suggest
from sluice.encoders.foundation.input.bounded import FREE, LONGEST, RATIO

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
