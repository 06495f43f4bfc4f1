"""An index whose vectors lie in PostgreSQL with pgvector."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from scipy import sparse

from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.trust import Allow, refuse_database
from sluice.indexing.checks import checked_dense, checked_sparse
from sluice.indexing.databases.index import Condition, DatabaseIndex, former_facts
from sluice.indexing.databases.pgvector.connection import connected, need_psycopg
from sluice.indexing.databases.pgvector.search import MOST_EF, Asked, Walk, differences, search
from sluice.indexing.databases.pgvector.settings import (
    DIMENSIONS,
    Column,
    Method,
    Row,
    Settings,
    decoded,
    digest_of,
    encoded,
    lines,
)
from sluice.indexing.databases.pgvector.states import (
    States,
    measured_recall,
    table_of_build,
    verified,
    where_sql,
    write_sample,
)
from sluice.indexing.databases.pgvector.table import (
    Table,
    check_queries,
    contributions,
    row_of,
    stored_weights,
)
from sluice.indexing.hits import Hits, LiveRows, Mask, Rows
from sluice.indexing.index import SearchParameters
from sluice.indexing.inverted.statistics import Contribution
from sluice.indexing.storage.exact_scores import Metric
from sluice.indexing.storage.rows import fact

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
    settings: Settings

    def __init__(
        self,
        dsn: Annotated[
            str,
            "postgresql://user@host:port/database without a password, which PGPASSWORD or "
            "~/.pgpass has; if left out, PGHOST, PGDATABASE and PGUSER are used.",
        ] = "",
        *,
        table: Annotated[str, "The prefix of its tables' names."] = "sluice",
        column: Annotated[
            Column | None, "vector, halfvec (float16) or sparsevec; left out, as the vectors are."
        ] = None,
        metric: Metric = "ip",
        method: Annotated[
            Method, "exact, or hnsw: a graph, approximate and faster for many documents."
        ] = "exact",
        m: Annotated[int, "Links of a vector in each layer of the graph, 16."] = 16,
        ef_construction: Annotated[int, "Candidates for the links of a new vector, 64."] = 64,
        prune: Annotated[
            int | None,
            "Keeps so many of a sparse vector's weights, the largest; left out, too many "
            "(16,000; with hnsw 1,000) are an error.",
        ] = None,
    ) -> None:
        super().__init__()
        self.settings = Settings(dsn, table, column, metric, method, m, ef_construction, prune)
        self.metric = None if column == "sparsevec" else metric
        self._table: Table | None = None
        self._column = column
        self._width = 0
        self._states = States()
        self._lost = [0.0, 0.0]  # of all weights, those that ``prune`` dropped, and their sum
        self.folder: Path | None = None  # of the state that was saved or opened
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
    def rounds(self) -> bool:
        """Whether vectors are stored in float16."""
        return self._column == "halfvec"

    @property
    def size_bytes(self) -> int:
        """Bytes of the table in the database, with its keys and its graph."""
        if self._table is None:
            return 0
        with connected(self.address) as connection:
            return self._table.size(connection)

    @property
    def differences(self) -> Sequence[str]:
        """How results may differ from those of our exact index; one sentence each."""
        return differences(self.settings, self._column, self.notes, self._lost)

    def check_fit(self, width: int, documents: int) -> None:
        """Raise ``ConfigError`` for vectors wider than the column, or its graph, can be."""
        need_psycopg()
        self.settings.check_width(width, self._column or "vector")

    def check_vectors(self, *, are_sparse: bool) -> None:
        """Raise ``ConfigError`` for another metric of sparse vectors, ``prune`` of dense ones."""
        column: Column = "sparsevec" if are_sparse else "vector"
        replace(self.settings, column=self.settings.column or column)

    def spool(self, folder: Path) -> None:
        """Note in ``folder`` which table is filled, so that a killed build continues with it."""
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
        self.check_vectors(are_sparse=column == "sparsevec")
        if column == "sparsevec":
            documents = stored_weights(documents, self.settings, self._lost)
        width = int(documents.shape[1])
        self.settings.check_width(width, column)
        first, stop = self.rows, self.rows + int(documents.shape[0])
        beside = self._beside(np.arange(first, stop, dtype=np.int64))
        parts = list(lines(first, documents, column, beside))
        size = DIMENSIONS[column] if column == "sparsevec" else width
        table = self._table or table_of_build(self._build, self.settings, column, size)
        with self._states.changing(table, first) as connection:
            digest = digest_of(parts) if self._build is not None else ""
            if not digest or not table.copied(connection, first, stop, digest):
                table.copy(connection, parts)
                if digest:
                    table.note_copy(connection, first, stop, digest)
        self._table, self._column = table, column
        self._width = max(self._width, width)
        if column == "sparsevec":
            self.metric = None

    def _beside(self, rows: Rows) -> list[Row] | None:
        if self.described is None:
            self._described = False
            return None
        return [row_of(*each) for each in zip(*self.described(rows), strict=True)]

    # Changing.

    def delete(self, rows: Any) -> None:
        """Put tombstones on ``rows``, in the database too; ``DataError`` as of any index."""
        with self._changing:
            after = LiveRows(self._live.total, self._live.deleted)
            after.delete(rows)
            dying = np.setdiff1d(after.deleted, self._live.deleted)
            if self._table is not None and len(dying):
                with self._states.changing(self._table, self.rows) as connection:
                    self._table.delete(connection, dying, self._states.horizon)
            self._live = after

    def _keep_only(self, allowed: Mask) -> None:
        if self._table is None:
            return
        old, new = self._table, Table.new(self.settings, self._table.column)
        with self._states.changing(old, self.rows) as connection:
            size = DIMENSIONS[new.column] if new.column == "sparsevec" else self._width
            new.create(connection, size, self._states.writer, parent=old.name)
            old.compact_into(connection, new, self._states.horizon)
        self._states.move(old)
        self._table = new

    # Searching.

    @property
    def _parameters(self) -> SearchParameters:
        names = ("ef_search", "max_scan_tuples") if self.settings.method == "hnsw" else ()
        return SearchParameters(names, _check_values)

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
        if self._column == "sparsevec":
            check_queries(queries)
        text, values = where_sql(where)
        asked = self._asked(self._asked_rows(allowed), text, values)
        walk = Walk(**parameters) if self.settings.method == "hnsw" else None
        return self._found(self._table, queries, k, asked, walk)

    def _asked(self, keep: Rows | None, where: str, values: Sequence[Any]) -> Asked:
        deleted = len(self) < self.rows
        return Asked(self.rows, self._states.horizon, deleted, keep, where, values)

    def _found(self, table: Table, queries: Any, k: int, asked: Asked, walk: Walk | None) -> Hits:
        vectors, metric = list(encoded(queries, table.column)), self.settings.metric
        graph = self.settings.method == "hnsw"
        with connected(self.address) as connection:
            return search(connection, table, metric, vectors, k, asked, walk, graph=graph)

    def search_exactly(self, vectors: Any, k: int) -> Hits:
        """Return the ``k`` best live documents of each query, without the graph if there is one."""
        if self._table is None or not k:
            return Hits.missing(len(vectors), k)
        asked = self._asked(None, "", ())
        return self._found(self._table, self._checked(vectors, "queries"), k, asked, None)

    @property
    def explains(self) -> bool:
        """Whether its vectors have terms."""
        return self._column == "sparsevec"

    def explain(self, query: Any, row: int) -> Sequence[Contribution]:
        """Return each shared term's part of the score of ``row``, in ascending term order."""
        if not self.explains:
            return super().explain(query, row)
        return contributions(self._checked(query, "query"), self.documents([row]))

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
        own, first = "" if self._table is None else self._table.name, self.folder is None
        for former in former_facts(folder, self.type_name):
            self._states.replaces(former, self.address, own)
        if self._table is not None:
            with self._states.changing(self._table, self.rows) as connection:
                self._table.cut(connection, self.rows)
                self._table.index(connection, self.settings)
                sampled = write_sample(folder, self._table, connection, self._live)
            self._states.save()
            if self.settings.method == "hnsw" and first and len(sampled):
                self.notes["recall"] = measured_recall(self, sampled)
        if first:
            for sentence in self.differences:
                log.info("pgvector: %s", sentence)
        self.folder = folder
        return {
            **asdict(self.settings),
            "column": self._column,
            "wanted_column": self.settings.column,
            "width": self._width,
            "name": None if self._table is None else self._table.name,
            **self._states.facts(),
            "described": self._described,
            "lost": self._lost,
        }

    def settle(self) -> None:
        """Note in the database that the last ``save`` is the current state; drop former tables."""
        if self._table is not None or self._states.dropped:
            self._states.settle(self._table, self.address)
            self._build = None

    @classmethod
    def _open(cls, folder: Path, facts: Mapping[str, Any], allow: Allow | Collection[str]) -> Self:
        names = {each.name for each in fields(Settings)}
        wanted = {name: value for name, value in facts.items() if name in names}
        try:
            index = cls(**{**wanted, "column": facts.get("wanted_column")})
        except (ConfigError, TypeError) as error:
            raise IndexFormatError(f"{folder}: {error}") from None
        refuse_database(index.address, f"{folder}: dsn", allow)
        index._column = replace(index.settings, column=facts.get("column")).column
        index.metric = None if index._column == "sparsevec" else index.settings.metric
        index._width = fact(facts, "width", int, folder)
        index._states = States.read(facts, folder)
        index._described = fact(facts, "described", bool, folder)
        index._lost = [float(each) for each in fact(facts, "lost", list, folder)][:2]
        if facts.get("name") is not None:
            column = index._column or "vector"
            index._table = Table(index.address, fact(facts, "name", str, folder), column)
        index.folder = folder
        return index

    def verify(self) -> Sequence[str]:
        """Compare the database with the folder: counts, sampled vectors, and their searches."""
        if self._table is None or self.folder is None:
            return ()
        graph = self.settings.method == "hnsw"
        return verified(self, self._table, self.folder, self._states, graph=graph)


def _check_values(params: Mapping[str, Any]) -> None:
    for name, value in params.items():
        whole_number(value, f"params: {name}", 1, MOST_EF if name == "ef_search" else 2**31 - 1)
