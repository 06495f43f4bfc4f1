"""One table of vectors in PostgreSQL with what goes into it, and the two that say its state.

``sluice_indexes`` has a line for each table: the mark of its last committed state, and who changes
it. ``sluice_copies`` has the digest of each chunk of a build, so that a killed one continues.
"""

from __future__ import annotations

import functools
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from sluice.encoders.foundation.errors import DataError, IndexFormatError
from sluice.indexing.databases.pgvector.connection import connected, need_psycopg
from sluice.indexing.databases.pgvector.settings import (
    COLUMNS,
    END,
    HEAD,
    NON_ZEROS,
    Column,
    Method,
    Row,
    Settings,
    pruned,
)
from sluice.indexing.hits import Rows
from sluice.indexing.inverted.statistics import Contribution
from sluice.indexing.storage.exact_scores import Metric


def row_of(name: str, metadata: Mapping[str, Any]) -> Row:
    """Return what is stored beside a vector; ``DataError`` for what PostgreSQL cannot hold."""
    plain = {key: _plain(value) for key, value in metadata.items()}
    written = json.dumps(plain, ensure_ascii=False)
    if "\0" in name or any("\0" in part for part in _texts(plain)):
        raise DataError(
            f"document {name!r}: its id or metadata has a zero character, which PostgreSQL has in "
            "no text; remove it"
        )
    return Row(name.encode(), b"\x01" + written.encode())  # 1: the version of jsonb's form


def _texts(metadata: Mapping[str, Any]) -> Iterator[str]:
    for key, value in metadata.items():
        yield key
        yield from (each for each in _several(value) if isinstance(each, str))


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def stored_weights(documents: Any, settings: Settings, lost: list[float]) -> Any:
    """Return sparse vectors as they can be stored; what ``prune`` drops is added to ``lost``.

    ``lost`` are the weight dropped and the weight of all. ``DataError`` for too many weights.
    """
    if settings.prune is None:
        lengths = np.diff(documents.indptr)
        if lengths.max(initial=0) > settings.most_non_zeros:
            row = int(lengths.argmax())
            settings.refuse_long(row, int(lengths[row]))
        return documents
    kept, dropped = pruned(documents, settings.prune)
    lost[0] += dropped
    lost[1] += float(documents.data.sum(dtype=np.float64))
    return kept


def contributions(query: Any, document: Any) -> list[Contribution]:
    """Return each shared term's part of the product of two sparse rows, in ascending term order."""
    impacts = dict(zip(document.indices.tolist(), document.data.tolist(), strict=True))
    weights = zip(query.indices.tolist(), query.data.tolist(), strict=True)
    return [
        Contribution(term, weight, impacts[term], weight * impacts[term])
        for term, weight in weights
        if term in impacts
    ]


def check_queries(queries: Any) -> None:
    """Raise ``DataError`` for a sparse query with more weights than a sparsevec has."""
    longest = int(np.diff(queries.indptr).max(initial=0))
    if longest > NON_ZEROS:
        raise DataError(
            f"queries: one has {longest:,} weights above 0; a sparsevec has at most "
            f"{NON_ZEROS:,}: set query_top_k of the encoder"
        )


LOCK = 7_234_091  # one creates the shared tables at a time
OPERATORS: dict[Metric, str] = {"ip": "<#>", "cosine": "<#>", "l2": "<->"}
CLASSES: dict[Metric, str] = {"ip": "ip", "cosine": "ip", "l2": "l2"}
SHARED = """
CREATE TABLE IF NOT EXISTS sluice_indexes (
    name text PRIMARY KEY, mark text NOT NULL, writer text NOT NULL, parent text);
CREATE TABLE IF NOT EXISTS sluice_copies (
    name text, first bigint, stop bigint, digest text NOT NULL, PRIMARY KEY (name, first));
"""


class Table:
    """A table ``(row, id, metadata, embedding, died)``: rows, and the state that deleted each."""

    def __init__(self, dsn: str, name: str, column: Column) -> None:
        self.dsn, self.name, self.column = dsn, name, column

    @classmethod
    def new(cls, settings: Settings, column: Column) -> Table:
        """Return a table of a new name, which is not there yet."""
        return cls(settings.dsn, f"{settings.table}_{secrets.token_hex(6)}", column)

    def sql(self, text: str) -> str:
        """Return a statement with the table's name, quoted, in the place of ``{table}``."""
        return _named(text, self.name)

    @contextmanager
    def changing(self) -> Iterator[Any]:
        """Yield a connection inside a transaction: all of a block happens, or nothing."""
        with connected(self.dsn) as connection, connection.transaction():
            yield connection

    def create(self, connection: Any, width: int, writer: str, parent: str = "") -> None:
        """Create the table, empty and of no state yet."""
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        connection.execute(SHARED)
        connection.execute(
            self.sql(
                "CREATE TABLE {table} (row bigint PRIMARY KEY, id text, metadata jsonb, "
                f"embedding {self.column}({int(width)}) NOT NULL, died bigint)"
            )
        )
        connection.execute(
            "INSERT INTO sluice_indexes VALUES (%s, '', %s, %s)", [self.name, writer, parent]
        )

    def status(self, connection: Any, *, change: bool = False) -> tuple[str, str]:
        """Return the mark and the writer of the table; ``IndexFormatError`` if it is not ours."""
        psycopg = need_psycopg()
        lock = " FOR UPDATE" if change else ""
        try:
            found = connection.execute(
                f"SELECT mark, writer FROM sluice_indexes WHERE name = %s{lock}", [self.name]
            ).fetchone()
        except psycopg.errors.UndefinedTable:
            found = None
        if found is None:
            raise IndexFormatError(
                f"pgvector: the database has no table {self.name!r} of ours; a later state has "
                "another: open the folder again, or rebuild it"
            )
        mark, writer = found
        return mark, writer

    def is_unfinished(self, connection: Any) -> bool:
        """Return whether the table is there, and of no state yet."""
        try:
            return self.status(connection)[0] == ""
        except IndexFormatError:
            return False

    def drop_unfinished(self, connection: Any) -> None:
        """Drop the table of a build that nobody continues."""
        if self.is_unfinished(connection):
            with connection.transaction():
                self.drop(connection, [""])

    def set_status(self, connection: Any, mark: str, writer: str) -> None:
        """Note the last committed state, and who changes the table."""
        connection.execute(
            "UPDATE sluice_indexes SET mark = %s, writer = %s WHERE name = %s",
            [mark, writer, self.name],
        )

    def undo(self, connection: Any, rows: int, state: int) -> None:
        """Undo what a killed change left: later rows, deletions, and unfinished tables."""
        self.cut(connection, rows)
        connection.execute(self.sql("UPDATE {table} SET died = NULL WHERE died > %s"), [state])
        unfinished = connection.execute(
            "SELECT name FROM sluice_indexes WHERE parent = %s AND mark = ''", [self.name]
        )
        for (name,) in unfinished.fetchall():
            Table(self.dsn, name, self.column).drop(connection, [""])

    def cut(self, connection: Any, rows: int) -> None:
        """Delete all rows from ``rows`` on."""
        connection.execute(self.sql("DELETE FROM {table} WHERE row >= %s"), [rows])
        connection.execute(
            "DELETE FROM sluice_copies WHERE name = %s AND stop > %s", [self.name, rows]
        )

    def drop(self, connection: Any, marks: Sequence[str]) -> None:
        """Drop the table, if it is ours and in one of the states with ``marks``."""
        ours = connection.execute(
            "DELETE FROM sluice_indexes WHERE name = %s AND mark = ANY(%s) RETURNING 1",
            [self.name, list(marks)],
        ).fetchone()
        if ours is not None:
            connection.execute(self.sql("DROP TABLE IF EXISTS {table}"))
            self.forget_copies(connection)

    def forget_copies(self, connection: Any) -> None:
        """Forget the chunks of a build: it is complete."""
        connection.execute("DELETE FROM sluice_copies WHERE name = %s", [self.name])

    def copy(self, connection: Any, parts: Iterable[bytes]) -> None:
        """Copy rows, in the form of ``lines``."""
        statement = self.sql(f"COPY {{table}} ({COLUMNS}) FROM STDIN (FORMAT binary)")
        with connection.cursor().copy(statement) as copy:
            for part in (HEAD, *parts, END):
                copy.write(part)

    def copied(self, connection: Any, first: int, stop: int, digest: str) -> bool:
        """Return whether a killed build copied these very rows; forget others from ``first`` on."""
        found = connection.execute(
            "SELECT stop, digest FROM sluice_copies WHERE name = %s AND first = %s",
            [self.name, first],
        ).fetchone()
        if found == (stop, digest):
            return True
        self.cut(connection, first)
        return False

    def note_copy(self, connection: Any, first: int, stop: int, digest: str) -> None:
        """Note a copied chunk, in the transaction that copies it."""
        connection.execute(
            "INSERT INTO sluice_copies VALUES (%s, %s, %s, %s)", [self.name, first, stop, digest]
        )

    def delete(self, connection: Any, rows: Rows, state: int) -> None:
        """Note that ``state`` deleted the rows; earlier states still have them."""
        connection.execute(
            self.sql("UPDATE {table} SET died = %s WHERE row = ANY(%s::bigint[])"),
            [state, rows.tolist()],
        )

    def compact_into(self, connection: Any, other: Table, state: int) -> None:
        """Copy the rows that live in ``state`` into a new table, without gaps."""
        from psycopg import sql

        connection.execute(
            sql.SQL(
                "INSERT INTO {new} SELECT row_number() OVER (ORDER BY row) - 1, id, metadata, "
                "embedding, NULL FROM {old} WHERE died IS NULL OR died > %s"
            ).format(new=sql.Identifier(other.name), old=sql.Identifier(self.name)),
            [state],
        )

    def index(self, connection: Any, settings: Settings) -> None:
        """Build the HNSW graph, where the settings want one and there is none; and statistics."""
        if settings.method == "hnsw":
            kind: Method = settings.method
            connection.execute(
                self.sql(
                    f"CREATE INDEX IF NOT EXISTS {{graph}} ON {{table}} USING {kind} (embedding "
                    f"{self.column}_{CLASSES[settings.metric]}_ops) WITH (m = {settings.m:d}, "
                    f"ef_construction = {settings.ef_construction:d})"
                )
            )
        connection.execute(self.sql("ANALYZE {table}"))

    def size(self, connection: Any) -> int:
        """Return the bytes on the server's disk, graph and keys included."""
        named = [self.sql("{table}")]
        found = connection.execute("SELECT pg_total_relation_size(%s::regclass)", named)
        return int(found.fetchone()[0])

    def counts(self, connection: Any, rows: int, state: int) -> tuple[int, int]:
        """Return how many of the first ``rows`` there are, and how many of them are deleted."""
        statement = self.sql(
            "SELECT count(*), count(*) FILTER (WHERE died <= %s) FROM {table} WHERE row < %s"
        )
        stored, deleted = connection.execute(statement, [state, rows]).fetchone()
        return int(stored), int(deleted)

    def vectors(self, connection: Any, rows: Rows) -> dict[int, bytes]:
        """Return the encoded vectors of rows, by row."""
        statement = self.sql("SELECT row, embedding FROM {table} WHERE row = ANY(%s::bigint[])")
        found = connection.execute(statement, [rows.tolist()], binary=True)
        return dict(found.fetchall())


@functools.lru_cache(maxsize=1024)
def _named(text: str, name: str) -> str:
    need_psycopg()
    from psycopg import sql

    names = {"table": sql.Identifier(name), "graph": sql.Identifier(f"{name}_hnsw")}
    return str(sql.SQL(text).format(**names).as_string(None))
