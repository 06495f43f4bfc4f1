"""Opens the SQLite files that caches are kept in, shared by processes and threads."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sluice.encoders.foundation.disk.files import check_version
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError

WAIT = 30.0  # seconds that a writer waits for the others


class Layout(NamedTuple):
    """What tells one kind of cache from others: a mark in the header, its version, its tables.

    ``holds`` is what errors call its entries, in the plural.
    """

    application: int
    version: int
    tables: Sequence[str]
    holds: str


def open_database(path: Path, layout: Layout) -> sqlite3.Connection:
    """Open a cache's file for all threads of this process; a missing one is created.

    ``ConfigError`` for a place that cannot be written, ``IndexFormatError`` for a file that is
    damaged, newer, or something else.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: the folder cannot be created ({error.strerror})") from error
    with reported(path, layout):
        database = sqlite3.connect(
            path, timeout=WAIT, isolation_level=None, check_same_thread=False
        )
        try:
            _prepare(database, path, layout)
        except BaseException:
            database.close()
            raise
    return database


def _prepare(database: sqlite3.Connection, path: Path, layout: Layout) -> None:
    database.execute("BEGIN")  # one look: another process may be making the file at this moment
    try:
        _check_kind(database, path, layout)
    finally:
        database.execute("COMMIT")
    database.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of a new file: it can shrink later
    _log_ahead(database, path)
    database.execute("PRAGMA synchronous = NORMAL")  # a power cut loses the last entries, no more
    database.execute(f"PRAGMA journal_size_limit = {16 << 20}")
    with transaction(database):
        if not _check_kind(database, path, layout):
            for statement in layout.tables:
                database.execute(statement)
            database.execute(f"PRAGMA application_id = {layout.application}")
            database.execute(f"PRAGMA user_version = {layout.version}")


def _check_kind(database: sqlite3.Connection, path: Path, layout: Layout) -> bool:
    """Return whether the file holds a cache, False if it is empty; others are refused."""
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not application and not tables:
        return False
    if application != layout.application:
        raise IndexFormatError(
            f"{path}: the database of another program; give another file for the cache of "
            f"{layout.holds}"
        )
    check_version(version, layout.version, path)
    return True


def _log_ahead(database: sqlite3.Connection, path: Path) -> None:
    """Turn on write-ahead logging; SQLite does not retry while another process does the same."""
    until = time.monotonic() + WAIT
    while True:
        try:
            mode = database.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise ConfigError(
                f"{path}: this file system does not support write-ahead logs (SQLite uses "
                f"{mode!r}); give a file on a local disk"
            )
        return


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Write everything that is done inside, or nothing after an error."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


@contextmanager
def reported(path: Path, layout: Layout) -> Iterator[None]:
    """Turn errors of SQLite into errors that name the file and the remedy."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if any(sign in str(error) for sign in ("malformed", "disk image", "no such", "decode")):
            raise damaged(path, layout, error) from error
        raise ConfigError(
            f"{path}: the cache of {layout.holds} cannot be read or written ({error}); give "
            "another file, or wait for the process that holds it"
        ) from error
    except sqlite3.DatabaseError as error:
        raise damaged(path, layout, error) from error


def damaged(path: Path, layout: Layout, reason: object) -> IndexFormatError:
    """Return the error for a damaged file."""
    return IndexFormatError(
        f"{path}: damaged ({reason}); delete it, with {path.name}-wal and {path.name}-shm beside "
        f"it: its {layout.holds} are computed again"
    )
