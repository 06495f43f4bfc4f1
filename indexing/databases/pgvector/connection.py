"""Connections to PostgreSQL: kept for the next search, opened anew where one broke."""

from __future__ import annotations

import atexit
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

from sluice.encoders.foundation.errors import (
    ConfigError,
    DataError,
    IndexFormatError,
    MissingPackageError,
    SluiceError,
)
from sluice.indexing.databases.pgvector.settings import ENVIRONMENT, Column

KEPT = 8  # idle connections of one address
PLACES = ("PGHOST", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE")


class Encoded(bytes):
    """A vector in the binary form of its type, as a parameter of a statement."""


_FORMS: dict[Column, type[Encoded]] = {
    "vector": type("EncodedVector", (Encoded,), {}),
    "halfvec": type("EncodedHalfvec", (Encoded,), {}),
    "sparsevec": type("EncodedSparsevec", (Encoded,), {}),
}
_idle: dict[tuple[str | None, ...], list[Any]] = {}


def as_parameter(data: bytes, column: Column) -> Encoded:
    """Return an encoded vector as a parameter of the column's type."""
    return _FORMS[column](data)


def need_psycopg() -> Any:
    """Return the package psycopg; ``MissingPackageError`` without it."""
    if find_spec("psycopg") is None:
        raise MissingPackageError("psycopg", "pgvector", "an index of type pgvector")
    import psycopg

    return psycopg


@contextmanager
def connected(dsn: str) -> Iterator[Any]:
    """Yield a connection in autocommit mode, which goes back to be used again.

    Errors of the database become ``SluiceError``s without any password in them.
    """
    psycopg = need_psycopg()
    key = (str(os.getpid()), dsn, *(os.environ.get(name) for name in PLACES))
    idle = _idle.setdefault(key, [])
    connection = _alive(idle)
    try:
        connection = connection or _connect(psycopg, dsn)
        yield connection
    except psycopg.Error as error:
        raise translated(error, dsn) from None
    except (KeyboardInterrupt, SystemExit):
        _close(connection)
        raise
    finally:
        if connection is not None:
            busy = connection.closed or connection.info.transaction_status != 0  # 0: idle
            if busy or len(idle) >= KEPT:
                _close(connection)
            else:
                idle.append(connection)


def _alive(idle: list[Any]) -> Any:
    """Return an idle connection that answers, None if there is none."""
    while True:
        try:
            connection = idle.pop()
        except IndexError:
            return None
        if not connection.closed and _answers(connection):
            return connection
        _close(connection)


def _answers(connection: Any) -> bool:
    """Return whether a connection is not closed by the server; nothing is sent."""
    # An idle connection has nothing to read, except that its server has ended.
    if not hasattr(select, "poll"):  # as on Windows, where select takes any descriptor
        return not select.select([connection.fileno()], [], [], 0)[0]
    polled = select.poll()
    polled.register(connection.fileno(), select.POLLIN)
    return not polled.poll(0)


def _close(connection: Any) -> None:
    if connection is not None:
        with suppress(Exception):
            connection.close()


def _connect(psycopg: Any, dsn: str) -> Any:
    options = {"autocommit": True, "fallback_application_name": "sluice"}
    try:
        connection = psycopg.connect(dsn, **options)
    except psycopg.Error as error:
        unnamed = "the server that PGHOST, PGDATABASE and PGUSER name"
        where = unnamed if dsn == ENVIRONMENT else dsn
        raise ConfigError(
            f"pgvector: cannot connect to {where}: {_said(error)}; start the server, or correct "
            f"dsn; a password belongs in PGPASSWORD or ~/.pgpass"
        ) from None
    try:
        _prepare(psycopg, connection)
    except BaseException:
        _close(connection)
        raise
    return connection


def _prepare(psycopg: Any, connection: Any) -> None:
    """Make the extension known to the connection: its types, and its settings."""
    connection.execute("SET client_min_messages = warning")
    found = connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'").fetchone()
    if found is None:
        try:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except psycopg.Error as error:
            raise ConfigError(
                f"pgvector: the database has no extension vector, and this user cannot create it "
                f"({_said(error)}); let its owner run CREATE EXTENSION vector"
            ) from None
    binary = psycopg.pq.Format.BINARY
    for name, form in _FORMS.items():
        info = psycopg.types.TypeInfo.fetch(connection, name)
        if info is None:
            raise ConfigError(
                f"pgvector: its version in this database has no type {name}; expected 0.8 or later:"
                " ALTER EXTENSION vector UPDATE"
            )
        dump = {"oid": info.oid, "format": binary, "dump": lambda self, value: bytes(value)}
        dumper = type(f"{form.__name__}Dumper", (psycopg.adapt.Dumper,), dump)
        connection.adapters.register_dumper(form, dumper)
        load = {"format": binary, "load": lambda self, data: bytes(data)}
        loader = type(f"{form.__name__}Loader", (psycopg.adapt.Loader,), load)
        connection.adapters.register_loader(info.oid, loader)
    version = connection.execute(
        "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
    ).fetchone()[0]
    if tuple(int(part) for part in version.split(".")[:2]) < (0, 8):
        raise ConfigError(
            f"pgvector: the database has version {version}; expected 0.8 or later, which scans "
            "further where a filter leaves too few hits: ALTER EXTENSION vector UPDATE"
        )


def translated(error: Exception, dsn: str) -> SluiceError:
    """Return an error of psycopg as one of ours: which database, what happened, what to do."""
    psycopg = need_psycopg()
    where = f"pgvector: {dsn}"
    if isinstance(error, psycopg.errors.UndefinedTable):
        return IndexFormatError(
            f"{where}: the table of this state is gone ({_said(error)}); a later state has another:"
            " open the folder again, or rebuild it"
        )
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return ConfigError(
            f"{where}: {_said(error)}; let its owner GRANT it, or connect as another user"
        )
    if isinstance(error, psycopg.errors.DiskFull):
        return DataError(f"{where}: {_said(error)}; nothing was changed: free space there")
    if isinstance(error, psycopg.OperationalError):
        return DataError(
            f"{where}: {_said(error)}; what was under way is undone: run it again when the server "
            "is back"
        )
    return DataError(f"{where}: {_said(error)}; correct it there, or rebuild")


def _said(error: Exception) -> str:
    """Return the first line that an error says, without the password of the environment."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    secret = os.environ.get("PGPASSWORD")
    said = " ".join(line.strip() for line in lines[:2])
    return said.replace(secret, "***") if secret else said


@atexit.register
def _close_all() -> None:
    for (process, *_), connections in _idle.items():
        if process == str(os.getpid()):
            for connection in connections:
                _close(connection)
