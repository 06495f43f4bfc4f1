"""Caches in SQLite files, shared by processes and threads; those of language models' answers."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.foundation.disk.files import OwnLock, check_version
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


TABLES = ("CREATE TABLE answers (key BLOB PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID",)
LAYOUT = Layout(0x534C5441, 1, TABLES, "answers")
REMEMBERED = 10_000  # answers in memory, without a file
AT_ONCE = 500  # answers looked up by one statement


class AnswerCache:
    """Answers by (model, prompt, length), shared by processes and threads.

    ``path`` is a SQLite file, made when it is first needed; a process that is killed leaves what it
    put before. None keeps the latest answers in memory. Prompts are known by 128-bit hashes
    (blake2b). ``IndexFormatError`` for a damaged or foreign file.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._lock = OwnLock()
        self._opened: tuple[int, sqlite3.Connection] | None = None  # by which process
        self._memory: dict[bytes, str] = {}

    def get(self, model: str, prompts: Sequence[str], length: int) -> dict[str, str]:
        """Return the answers of the prompts that have one."""
        keys = {_key(model, prompt, length): prompt for prompt in prompts}
        found: Mapping[bytes, str] = self._memory
        if self.path is not None:
            found = self._read(self.path, list(keys))
        return {prompt: found[key] for key, prompt in keys.items() if key in found}

    def put(self, model: str, prompt: str, length: int, answer: str) -> None:
        """Add an answer; one that is there already stays."""
        key = _key(model, prompt, length)
        with self._lock:
            if self.path is None:
                self._memory.setdefault(key, answer)
                while len(self._memory) > REMEMBERED:
                    del self._memory[next(iter(self._memory))]
                return
            with reported(self.path, LAYOUT):
                database = self._database(self.path)
                with transaction(database):
                    database.execute(
                        "INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, encodable(answer))
                    )

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        with self._lock:
            if self._opened is not None and self._opened[0] == os.getpid():
                self._opened[1].close()
            self._opened = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which opens the file by itself."""
        return {**self.__dict__, "_opened": None}

    def _read(self, path: Path, keys: Sequence[bytes]) -> dict[bytes, str]:
        rows = []
        with self._lock, reported(path, LAYOUT):
            database = self._database(path)
            for start in range(0, len(keys), AT_ONCE):
                some = keys[start : start + AT_ONCE]
                marks = ",".join("?" * len(some))
                statement = f"SELECT key, text FROM answers WHERE key IN ({marks})"
                rows += database.execute(statement, some).fetchall()
        if not all(isinstance(text, str) for _, text in rows):
            raise damaged(path, LAYOUT, "an answer is not text")
        return dict(rows)

    def _database(self, path: Path) -> sqlite3.Connection:
        """Return this process's connection: one that was opened before a fork is not shared."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), open_database(path, LAYOUT)
        return self._opened[1]


def _key(model: str, prompt: str, length: int) -> bytes:
    text = f"{model}\n{length}\n{prompt}".encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=16).digest()


def encodable(text: str) -> str:
    """Return a text with the replacement character for lone surrogates, which no file can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
