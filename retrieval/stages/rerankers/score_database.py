"""The file of a score cache: opened, checked, and made by one of several processes at once."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sluice.encoders.foundation.errors import ConfigError, IndexFormatError

APPLICATION = 0x534C5343  # in the file's header, so that no other program's database is taken
VERSION = 1
WAIT = 30.0  # seconds that a writer waits for the others
TABLES = (
    "CREATE TABLE batches (id INTEGER PRIMARY KEY, query BLOB NOT NULL, used INTEGER NOT NULL,"
    " bytes INTEGER NOT NULL)",
    "CREATE INDEX batches_by_query ON batches (query)",
    "CREATE INDEX batches_by_use ON batches (used, id)",
    "CREATE TABLE contents (id INTEGER PRIMARY KEY, documents BLOB NOT NULL, scores BLOB NOT NULL,"
    " checksum INTEGER NOT NULL)",
)


def open_database(path: Path) -> sqlite3.Connection:
    """Open a cache's file, which is made where there is none, for any thread of this process.

    ``ConfigError`` for a place that cannot be written, ``IndexFormatError`` for a file that is
    damaged, newer, or something else.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be made there ({error.strerror})") from error
    with reported(path):
        database = sqlite3.connect(
            path, timeout=WAIT, isolation_level=None, check_same_thread=False
        )
        try:
            _prepare(database, path)
        except BaseException:
            database.close()
            raise
    return database


def _prepare(database: sqlite3.Connection, path: Path) -> None:
    database.execute("BEGIN")  # one look: another process may be making the file at this moment
    try:
        _check_kind(database, path)
    finally:
        database.execute("COMMIT")
    database.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of a new file: it can shrink later
    _log_ahead(database, path)
    database.execute("PRAGMA synchronous = NORMAL")  # a power cut loses the last scores, no more
    database.execute(f"PRAGMA journal_size_limit = {16 << 20}")
    with transaction(database):
        if not _check_kind(database, path):
            for statement in TABLES:
                database.execute(statement)
            database.execute(f"PRAGMA application_id = {APPLICATION}")
            database.execute(f"PRAGMA user_version = {VERSION}")


def _check_kind(database: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file holds a cache, False if it is empty; others are refused."""
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not application and not tables:
        return False
    if application != APPLICATION:
        raise IndexFormatError(
            f"{path}: a database of another program, expected a cache of scores; give another file"
        )
    if version != VERSION:
        raise IndexFormatError(
            f"{path}: a cache of format {version}, this version reads {VERSION}; update Sluice, or "
            "delete the file: its scores are computed again"
        )
    return True


def _log_ahead(database: sqlite3.Connection, path: Path) -> None:
    """Turn to write-ahead logging; SQLite does not wait by itself while others do the same."""
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
                f"{path}: this file system keeps no write-ahead log (SQLite uses {mode!r}); give a "
                "file on a local disk"
            )
        return


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Write all of what is done inside, or on an error nothing."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Raise what SQLite finds wrong as an error that names the file and the remedy."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if any(sign in str(error) for sign in ("malformed", "disk image", "no such", "decode")):
            raise damaged(path, error) from error
        raise ConfigError(
            f"{path}: the cache of scores cannot be read or written ({error}); give another file, "
            "or wait for the process that holds it"
        ) from error
    except sqlite3.DatabaseError as error:
        raise damaged(path, error) from error


def damaged(path: Path, reason: object) -> IndexFormatError:
    """Return the error of a file that is not what was written."""
    return IndexFormatError(
        f"{path}: damaged ({reason}); delete it, with {path.name}-wal and {path.name}-shm beside "
        "it: its scores are computed again"
    )
