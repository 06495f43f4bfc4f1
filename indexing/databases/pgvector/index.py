"""An index whose vectors lie in PostgreSQL with pgvector."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy import sparse

from sluice.encoders.foundation.disk.files import read_json, write_json
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.trust import Allow, refuse_database
from sluice.indexing.checks import checked_dense, checked_sparse
from sluice.indexing.databases.conditions import Condition
from sluice.indexing.databases.index import DatabaseIndex
from sluice.indexing.databases.pgvector.beside import check_queries, row_of, stored_weights
from sluice.indexing.databases.pgvector.conditions import where_sql
from sluice.indexing.databases.pgvector.connection import connected, need_psycopg
from sluice.indexing.databases.pgvector.former import former_tables
from sluice.indexing.databases.pgvector.notes import differences
from sluice.indexing.databases.pgvector.search import MOST_EF, Asked, Walk, search
from sluice.indexing.databases.pgvector.settings import Column, Method, Settings
from sluice.indexing.databases.pgvector.table import Row, Table, digest_of
from sluice.indexing.databases.pgvector.vectors import decoded, encoded
from sluice.indexing.databases.pgvector.verification import (
    measured_recall,
    verified,
    write_sample,
)
from sluice.indexing.hits import Hits
from sluice.indexing.live_rows import LiveRows, Mask, Rows
from sluice.indexing.storage.arrays import fact
from sluice.indexing.storage.exact_scores import Metric

log = logging.getLogger("sluice")

BUILD = "pgvector.json"  # in the work folder of a build: which table it fills


class PgvectorIndex(DatabaseIndex):
    """Vectors in a table of PostgreSQL, searched by pgvector; exactly, unless ``method: hnsw``.

    ``dsn`` is ``postgresql://user@host:port/database``, without a password, which PGPASSWORD or
    ``~/.pgpass`` has; left out, the environment says it, as for ``psql``. ``table`` is what names
    of its tables begin with. The vectors decide the ``column``: ``vector`` for dense ones,
    ``sparsevec`` for sparse ones; ``halfvec`` stores dense ones in float16. ``metric`` is ``ip``,
    ``l2`` (scores are negative squared distances) or ``cosine``, which stores normalised vectors.

    Exact hits are those of ``FlatIndex`` and ``InvertedIndex``: ties by row, at the boundary of
    ``k`` too; scores are float32 sums of the database, equal in about six digits, so documents
    nearer than that may swap. ``hnsw`` walks a graph of ``m`` links, built with
    ``ef_construction`` candidates; ``params`` of a search are ``ef_search``, the candidates (100,
    and ``k`` at least), and ``max_scan_tuples``, how many vectors a filter may make it look at
    (20,000). Where few rows are allowed, and where the walk finds fewer than ``k``, all are scored.

    A sparse vector has at most 16,000 weights, or 1,000 with ``hnsw``: more are a ``DataError``,
    unless ``prune`` keeps the largest, and says what was lost.

    The folder names the table, its rows and its state; two copies of a folder share the table, and
    the one that is changed first is the one that can be changed. A build that was killed continues
    after the last chunk that was copied. Needs ``pip install 'sluice-ir[pgvector]'``.
    """

    type_name = "pgvector"

    def __init__(
        self,
        dsn: str = "",
        *,
        table: str = "sluice",
        column: Column | None = None,
        metric: Metric = "ip",
        method: Method = "exact",
        m: int = 16,
        ef_construction: int = 64,
        prune: int | None = None,
    ) -> None:
        super().__init__()
        self.settings = Settings(dsn, table, column, metric, method, m, ef_construction, prune)
        self.metric = None if column == "sparsevec" else metric
        self._table: Table | None = None
        self._column = column
        self._width = 0
        self._state = 0  # the last one saved; a change under way makes the next
        self._mark = self._former = ""  # of the last one saved, and of the one committed before
        self._writer = ""  # of the changes under way; empty before the first
        self._described = True  # whether every row has the metadata of its document
        self._lost = [0.0, 0.0]  # of all weights, those that ``prune`` dropped, and their sum
        self._former_tables: dict[str, list[str]] = {}  # to be dropped, with their marks
        self._folder: Path | None = None  # of the saved state that was opened
        self._build: Path | None = None  # the note of a build under way

    # What it is.

    @property
    def address(self) -> str:
        """The ``dsn``."""
        return self.settings.dsn

    @property
    def width(self) -> int | None:
        """Dimensions of the vectors; None before the first ``add``, and of sparse ones."""
        return self._width if self._width and self._column != "sparsevec" else None

    @property
    def filters(self) -> bool:
        """Whether the database has the metadata of every row, so that it can be asked."""
        return self._described

    @property
    def size_bytes(self) -> int:
        """Bytes of the table in the database, with its keys and its graph."""
        if self._table is None:
            return 0
        with connected(self.address) as connection:
            return self._table.size(connection)

    @property
    def resident_bytes(self) -> int:
        """None here: the memory is the server's."""
        return 0

    @property
    def differences(self) -> Sequence[str]:
        """How results may differ from those of our exact index; one sentence each."""
        return differences(self.settings, self._column, self.notes, self._lost)

    def empty(self) -> Self:
        """Return an index without documents that has the settings of this one."""
        return type(self)(**asdict(self.settings))

    def check_fit(self, width: int, documents: int) -> None:
        """Raise ``ConfigError`` for vectors wider than the column, or its graph, can be."""
        need_psycopg()
        self.settings.check_width(width, self._column or "vector")

    def spool(self, folder: Path) -> None:
        """Note in ``folder`` which table is filled, so that a killed build goes on with it."""
        if self._table is None and not self.rows:
            self._build = folder / BUILD

    # Adding.

    def _checked(self, vectors: Any, what: str) -> Any:
        column = self._column or ("sparsevec" if sparse.issparse(vectors) else "vector")
        if column != "sparsevec":
            dense = checked_dense(vectors, self.width, what)
            if self.settings.metric == "cosine":
                lengths = np.sqrt(np.square(dense, dtype=np.float64).sum(axis=1))
                lengths[lengths == 0] = 1  # a zero vector has cosine 0
                dense = np.asarray(dense / lengths[:, None], np.float32)
            if column == "halfvec" and np.abs(dense).max(initial=0) > np.finfo(np.float16).max:
                raise DataError(f"{what}: values above 65504, the most of float16; column: vector")
            return dense
        return checked_sparse(vectors, what)

    def _append(self, documents: Any) -> None:
        column = self._column or ("sparsevec" if sparse.issparse(documents) else "vector")
        if column == "sparsevec":
            replace(self.settings, column=column)  # refuses another metric
            documents = stored_weights(documents, self.settings, self._lost)
        width = int(documents.shape[1])
        self.settings.check_width(width, column)
        first, stop = self.rows, self.rows + int(documents.shape[0])
        vectors = list(encoded(documents, column))
        beside = self._beside(np.arange(first, stop, dtype=np.int64))
        table = self._table or self._own_table(column, width)
        with table.changing() as connection:
            self._begin(connection, table)
            digest = digest_of(vectors, beside) if self._build is not None else ""
            if not digest or not table.copied(connection, first, stop, digest):
                table.copy(connection, first, vectors, beside)
                if digest:
                    table.note_copy(connection, first, stop, digest)
        self._table, self._column = table, column
        self._width = max(self._width, width)
        if column == "sparsevec":
            self.metric = None

    def _beside(self, rows: Rows) -> list[Row]:
        if self.described is None:
            self._described = False
            return [Row()] * len(rows)
        return [row_of(*each) for each in zip(*self.described(rows), strict=True)]

    def _own_table(self, column: Column, width: int) -> Table:
        """Return the table of a build that was killed, or a new one."""
        size = 10**9 if column == "sparsevec" else width
        own = {"dsn": self.address, "table": self.settings.table, "column": column, "width": size}
        note = self._build
        if note is not None and note.exists():
            begun = read_json(note)
            if isinstance(begun, dict) and {**begun, "name": ""} == {**own, "name": ""}:
                table = Table(self.address, str(begun["name"]), column)
                with connected(self.address) as connection:
                    try:
                        mark, _ = table.status(connection)
                    except IndexFormatError:
                        mark = "gone"
                if mark == "":
                    log.info("pgvector: going on with the table %s of a killed build", table.name)
                    return table
        table = Table.new(self.settings, column)
        if note is not None:
            note.parent.mkdir(parents=True, exist_ok=True)
            write_json(note, {**own, "name": table.name})
        with table.changing() as connection:
            table.create(connection, size, "")
        return table

    # Changing.

    def _begin(self, connection: Any, table: Table) -> None:
        """Take the table for changes, inside their transaction; undo what a killed one left."""
        mark, writer = table.status(connection, change=True)
        if self._writer:
            if writer != self._writer:
                raise IndexFormatError(
                    f"pgvector: {table.name} was changed by another program meanwhile; nothing "
                    "was changed now: open the folder again"
                )
            return
        if mark not in (self._mark, self._former):
            raise IndexFormatError(
                f"pgvector: {table.name} is in a later state than this folder, which is an older "
                "copy; change the folder that was changed last, or rebuild this one"
            )
        if self._mark:
            table.undo(connection, self.rows, self._state)
        self._writer = secrets.token_hex(8)
        table.set_status(connection, self._mark, self._writer)

    @property
    def _horizon(self) -> int:
        """The state that this object sees: a change under way sees its own deletions."""
        return self._state + bool(self._writer)

    def delete(self, rows: Any) -> None:
        """Put tombstones on ``rows``, in the database too; ``DataError`` as of any index."""
        with self._changing:
            after = LiveRows(self._live.total, self._live.deleted)
            after.delete(rows)
            dying = np.setdiff1d(after.deleted, self._live.deleted)
            if self._table is not None and len(dying):
                with self._table.changing() as connection:
                    self._begin(connection, self._table)
                    self._table.delete(connection, dying, self._horizon)
            self._live = after

    def _keep_only(self, allowed: Mask) -> None:
        if self._table is None:
            return
        old, new = self._table, Table.new(self.settings, self._table.column)
        with old.changing() as connection:
            self._begin(connection, old)
            size = 10**9 if new.column == "sparsevec" else self._width
            new.create(connection, size, self._writer, parent=old.name)
            old.compact_into(connection, new, self._horizon)
        self._former_tables[old.name] = [self._mark, self._former]
        self._table, self._state, self._mark, self._former = new, 0, "", ""

    # Searching.

    def _search_parameters(self) -> tuple[str, ...]:
        return ("ef_search", "max_scan_tuples") if self.settings.method == "hnsw" else ()

    def _check_parameters(self, params: Mapping[str, Any]) -> None:
        super()._check_parameters(params)
        for name, value in params.items():
            whole_number(value, f"params: {name}", 1, MOST_EF if name == "ef_search" else 2**31 - 1)

    def _search_where(
        self,
        queries: Any,
        k: int,
        where: Sequence[Condition],
        allowed: Mask | None,
        parameters: dict[str, Any],
    ) -> Hits:
        if self._table is None:
            return Hits.missing(len(queries), k)
        if where and not self.filters:
            raise ConfigError(
                "where: the database has no metadata of some rows; search with keep, or build the "
                "index with Retriever.build"
            )
        if self._column == "sparsevec":
            check_queries(queries)
        text, values = where_sql(where)
        asked = Asked(self.rows, self._horizon, self._asked_rows(allowed), text, values)
        walk = Walk(**parameters) if self.settings.method == "hnsw" else None
        return self._found(self._table, queries, k, asked, walk)

    def _found(self, table: Table, queries: Any, k: int, asked: Asked, walk: Walk | None) -> Hits:
        vectors = list(encoded(queries, table.column))
        with connected(self.address) as connection:
            return search(connection, table, self.settings.metric, vectors, k, asked, walk)

    def search_exactly(self, vectors: Any, k: int) -> Hits:
        """Return the ``k`` best live documents of each query, without the graph if there is one."""
        if self._table is None or not k:
            return Hits.missing(len(vectors), k)
        asked = Asked(self.rows, self._horizon, None, "", ())
        return self._found(self._table, self._checked(vectors, "queries"), k, asked, None)

    def _documents(self, rows: Rows) -> Any:
        if self._table is None or not len(rows):
            empty: Any = sparse.csr_array((0, self._width), dtype=np.float32)
            dense = np.zeros((0, self._width), np.float32)
            return empty if self._column == "sparsevec" else dense
        with connected(self.address) as connection:
            stored = self._table.vectors(connection, rows)
        if absent := [row for row in rows.tolist() if row not in stored]:
            raise IndexFormatError(
                f"pgvector: {self._table.name} has no row {absent[0]}, which this state has; "
                "restore the table, or rebuild"
            )
        return decoded([stored[row] for row in rows.tolist()], self._table.column, self._width)

    # Saving.

    def _write(self, folder: Path) -> dict[str, Any]:
        own = "" if self._table is None else self._table.name
        self._former_tables |= former_tables(folder, self.address, own)
        if self._table is not None:
            with self._table.changing() as connection:
                self._begin(connection, self._table)
                self._table.cut(connection, self.rows)
                self._table.index(connection, self.settings)
                sampled = write_sample(folder, self._table, connection, self._live)
            self._state += 1
            self._mark = secrets.token_hex(8)
            if self.settings.method == "hnsw" and not self._former and len(sampled):
                self.notes["recall"] = measured_recall(self, sampled)
        if not self._former:
            for sentence in self.differences:
                log.info("pgvector: %s", sentence)
        return {
            **asdict(self.settings),
            "column": self._column,
            "wanted_column": self.settings.column,
            "width": self._width,
            "name": None if self._table is None else self._table.name,
            "state": self._state,
            "mark": self._mark,
            "former": self._former,
            "former_tables": self._former_tables,
            "described": self._described,
            "lost": self._lost,
        }

    def settle(self) -> None:
        """Note in the database that the last ``save`` is the current state; drop former tables."""
        if self._table is None and not self._former_tables:
            return
        try:
            with connected(self.address) as connection, connection.transaction():
                if self._table is not None:
                    self._table.set_status(connection, self._mark, self._writer)
                    self._table.forget_copies(connection)
                for name, marks in self._former_tables.items():
                    Table(self.address, name, "vector").drop(connection, marks)
        except (DataError, IndexFormatError) as error:
            log.warning("%s; the next change repeats it", error)
            return
        self._former, self._former_tables, self._build = self._mark, {}, None

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        return cls._open(folder, facts, ())

    @classmethod
    def _open(cls, folder: Path, facts: Mapping[str, Any], allow: Allow | Collection[str]) -> Self:
        dsn = fact(facts, "dsn", str, folder)
        names = {each.name for each in fields(Settings)}
        wanted = {name: value for name, value in facts.items() if name in names}
        try:
            index = cls(**{**wanted, "column": facts.get("wanted_column")})
        except (ConfigError, TypeError) as error:
            raise IndexFormatError(f"{folder}: {error}") from None
        if dsn:
            refuse_database(dsn, f"{folder}: dsn", allow)
        index._column = replace(index.settings, column=facts.get("column")).column
        index.metric = None if index._column == "sparsevec" else index.settings.metric
        index._width = fact(facts, "width", int, folder)
        index._state = fact(facts, "state", int, folder)
        index._mark = fact(facts, "mark", str, folder)
        index._former = fact(facts, "former", str, folder)
        former = fact(facts, "former_tables", dict, folder)
        index._former_tables = {str(name): list(map(str, marks)) for name, marks in former.items()}
        index._described = fact(facts, "described", bool, folder)
        index._lost = [float(each) for each in fact(facts, "lost", list, folder)][:2]
        if facts.get("name") is not None:
            column = index._column or "vector"
            index._table = Table(dsn, fact(facts, "name", str, folder), column)
        index._folder = folder
        return index

    def verify(self) -> Sequence[str]:
        """Compare the database with the folder: counts, sampled vectors, and their searches."""
        if self._table is None or self._folder is None:
            return ()
        saved, graph = (self._state, self._mark, self._former), self.settings.method == "hnsw"
        return verified(self, self._table, self._folder, saved, graph=graph)
