"""States of a table in PostgreSQL: which rows a search sees, filters as SQL, and checks."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np

from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.disk.files import read_json, write_json
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError, SluiceError
from sluice.indexing.databases.index import Condition, DatabaseIndex
from sluice.indexing.databases.pgvector.connection import connected
from sluice.indexing.databases.pgvector.settings import Column, Settings
from sluice.indexing.databases.pgvector.table import Table
from sluice.indexing.hits import LiveRows, Rows
from sluice.indexing.storage.rows import fact

SIGNS = {"gte": ">=", "gt": ">", "lte": "<=", "lt": "<"}


def where_sql(conditions: Sequence[Condition]) -> tuple[str, list[Any]]:
    """Return a condition of SQL with places for parameters, and the parameters; "" of none."""
    parts, values = [], list[Any]()
    for condition in conditions:
        text, own = _condition(condition)
        parts.append(text)
        values += own
    return " AND ".join(parts), values


def _condition(condition: Condition) -> tuple[str, list[Any]]:
    key, operator, values = condition
    _check_text(key, key)
    for value in values:
        _check_text(key, value)
    if operator in SIGNS:
        return _order(key, SIGNS[operator], values[0])
    parts, parameters = [], list[Any]()
    for value in values:
        if value is None:
            parts.append("NOT COALESCE(metadata ? %s, false)")
            parameters.append(key)
        else:
            # Of a list of texts, too: an array contains each of its values.
            parts.append("COALESCE((metadata -> %s::text) @> %s::jsonb, false)")
            parameters += [key, json.dumps(value)]
    either = " OR ".join(parts) or "false"
    return (f"NOT ({either})" if operator == "not" else f"({either})"), parameters


def _order(key: str, sign: str, value: Any) -> tuple[str, list[Any]]:
    if isinstance(value, str):
        kind, compared = "string", f'(metadata ->> %s::text) COLLATE "C" {sign} %s::text'
    else:
        kind, compared = "number", f"(metadata ->> %s::text)::numeric {sign} %s::numeric"
        value = json.dumps(value)
    # CASE and not AND: a database may evaluate the parts of an AND in any order.
    text = f"(CASE jsonb_typeof(metadata -> %s::text) WHEN '{kind}' THEN {compared} ELSE false END)"
    return text, [key, key, value]


def _check_text(key: str, value: Any) -> None:
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"where.{key}: has a zero character, which PostgreSQL has in no text")


log = logging.getLogger("sluice")


class States:
    """Which state of a table this is, by number and mark; and whose changes are under way.

    The database has the mark of the last committed state. A folder of that state, or of the one
    that a kill kept from being noted, may change the table; an older copy of it may not.
    """

    def __init__(self) -> None:
        self.number = 0  # of the last state saved; a change under way makes the next
        self.mark = self.former = ""  # of the last one saved, and of the one committed before
        self.writer = ""  # of the changes under way; empty before the first
        self.dropped: dict[str, list[str]] = {}  # tables that only earlier states have: their marks

    @property
    def horizon(self) -> int:
        """The state that is seen: a change under way sees its own deletions."""
        return self.number + bool(self.writer)

    @contextmanager
    def changing(self, table: Table, rows: int) -> Iterator[Any]:
        """Yield a connection inside a transaction that holds the table, of ``rows`` rows.

        What a killed change left there is undone first.
        """
        held = self.writer, self.former
        try:
            with table.changing() as connection:
                self._begin(connection, table, rows)
                yield connection
        except BaseException:
            self.writer, self.former = held
            raise

    def _begin(self, connection: Any, table: Table, rows: int) -> None:
        mark, writer = table.status(connection, change=True)
        if self.writer:
            if writer != self.writer:
                raise IndexFormatError(
                    f"pgvector: {table.name} was changed by another program meanwhile; nothing "
                    "was changed now: open the folder again"
                )
            return
        if mark not in (self.mark, self.former):
            raise IndexFormatError(
                f"pgvector: {table.name} is in a later state than this folder, which is an older "
                "copy; change the folder that was changed last, or rebuild this one"
            )
        if self.mark:
            table.undo(connection, rows, self.number)
            self.former = self.mark
        self.writer = secrets.token_hex(8)
        table.set_status(connection, self.mark, self.writer)

    def save(self) -> None:
        """Make the changes the next state."""
        self.number += 1
        self.mark = secrets.token_hex(8)

    def move(self, old: Table) -> None:
        """Begin anew with another table, which takes the place of ``old``."""
        self.dropped[old.name] = [self.mark, self.former]
        self.number, self.mark, self.former = 0, "", ""

    def replaces(self, former: Mapping[str, Any], dsn: str, own: str) -> None:
        """Have the table of a former state, by its facts, dropped when this state is committed."""
        name = former.get("name")
        if former.get("dsn") == dsn and isinstance(name, str) and name != own:
            self.dropped[name] = [str(former.get("mark")), str(former.get("former"))]

    def settle(self, table: Table | None, dsn: str) -> None:
        """Note in the database that the last state saved is committed; drop former tables."""
        try:
            with connected(dsn) as connection, connection.transaction():
                if table is not None:
                    table.set_status(connection, self.mark, self.writer)
                    table.forget_copies(connection)
                for name, marks in self.dropped.items():
                    Table(dsn, name, "vector").drop(connection, marks)
        except SluiceError as error:  # the state is on the disk: no error may say otherwise
            log.warning("%s; the next change repeats it", error)
            return
        self.former, self.dropped = self.mark, {}

    def facts(self) -> dict[str, Any]:
        """Return what ``read`` needs."""
        return {
            "state": self.number, "mark": self.mark, "former": self.former,
            "dropped": self.dropped,
        }  # fmt: skip

    @classmethod
    def read(cls, facts: Mapping[str, Any], where: Path) -> Self:
        """Return the state that a manifest has; ``IndexFormatError`` for other facts."""
        states = cls()
        states.number = fact(facts, "state", int, where)
        states.mark = fact(facts, "mark", str, where)
        states.former = fact(facts, "former", str, where)
        dropped = fact(facts, "dropped", dict, where)
        states.dropped = {str(name): list(map(str, marks)) for name, marks in dropped.items()}
        return states


def table_of_build(note: Path | None, settings: Settings, column: Column, width: int) -> Table:
    """Return the table that a killed build began, by its note, or a new one, which is noted."""
    own = {"dsn": settings.dsn, "table": settings.table, "column": column, "width": width}
    begun = read_json(note) if note is not None and note.exists() else None
    if isinstance(begun, dict) and begun.get("dsn") == settings.dsn:
        table = Table(settings.dsn, str(begun.get("name")), column)
        with connected(settings.dsn) as connection:
            if {**begun, "name": ""} != {**own, "name": ""}:
                table.drop_unfinished(connection)
            elif table.is_unfinished(connection):
                log.info("pgvector: a killed build continues in the table %s", table.name)
                return table
    table = Table.new(settings, column)
    if note is not None:
        note.parent.mkdir(parents=True, exist_ok=True)
        write_json(note, {**own, "name": table.name})
    with table.changing() as connection:
        table.create(connection, width, "")
    return table


SAMPLE = "sample-{}.npy"  # rows, and their vectors in binary form, one after the other
SAMPLED = 64
DEPTH = 10


def write_sample(folder: Path, table: Table, connection: Any, live: LiveRows) -> Rows:
    """Write some vectors of a table into the folder, for ``verified``; return their rows."""
    allowed = live.allowed()
    rows = np.arange(live.total) if allowed is None else np.flatnonzero(allowed)
    if len(rows) > SAMPLED:
        rows = rows[np.linspace(0, len(rows) - 1, SAMPLED).astype(np.int64)]
    stored = table.vectors(connection, rows)
    data = [stored[row] for row in rows.tolist()]
    ends = np.cumsum([0, *map(len, data)])
    parts = {"rows": rows, "ends": ends, "data": np.frombuffer(b"".join(data), np.uint8)}
    for name, values in parts.items():
        np.save(folder / SAMPLE.format(name), values)
    return rows


def verified(
    index: DatabaseIndex, table: Table, folder: Path, states: States, *, graph: bool
) -> list[str]:
    """Check a table against the folder of a saved state; return what was checked.

    ``graph`` is whether there is one. ``IndexFormatError`` for other counts, other vectors, and
    searches out of order.
    """
    rows, ends, data = (
        open_array(folder / SAMPLE.format(name), dtype, (None,))
        for name, dtype in (("rows", np.int64), ("ends", np.int64), ("data", np.uint8))
    )
    with connected(table.dsn) as connection:
        found, _ = table.status(connection)
        counted = table.counts(connection, index.rows, states.number)
        stored = table.vectors(connection, rows)
    if found not in (states.mark, states.former):
        raise _differs(table, "another copy of this folder has changed it since")
    expected = (index.rows, index.rows - len(index))
    if counted != expected:
        raise _differs(
            table,
            f"it has {counted[0]:,} rows, {counted[1]:,} of them deleted; this state has "
            f"{expected[0]:,} and {expected[1]:,}",
        )
    for place, row in enumerate(rows.tolist()):
        if stored.get(row) != data[ends[place] : ends[place + 1]].tobytes():
            raise _differs(table, f"the vector of row {row} is another than was saved")
    lines = [f"{counted[0]:,} rows", f"the vectors of {len(rows):,} of them"]
    if len(rows):
        hits = index.search_exactly(index.documents(rows), DEPTH)
        better, later = (
            hits.scores[:, 1:] < hits.scores[:, :-1],
            hits.rows[:, 1:] > hits.rows[:, :-1],
        )
        if not (better | later | (hits.rows[:, 1:] < 0)).all():
            raise _differs(table, "its hits are not in the order of score and row")
        lines.append("the order of ties")
        if graph:
            lines.append(f"recall@{DEPTH} {measured_recall(index, rows):.3f} of the graph")
    return lines


def measured_recall(index: DatabaseIndex, sampled: Rows) -> float:
    """Return how many of the exact nearest of stored vectors the graph finds, from 0 to 1."""
    queries = index.documents(sampled)
    walked, exact = index.search(queries, DEPTH), index.search_exactly(queries, DEPTH)
    found = [
        np.isin(other[other >= 0], one).mean()
        for one, other in zip(walked.rows, exact.rows, strict=True)
        if (other >= 0).any()
    ]
    return float(np.mean(found)) if found else 1.0


def _differs(table: Table, what: str) -> IndexFormatError:
    return IndexFormatError(
        f"pgvector: {table.name}: {what}; restore the table from a copy, or rebuild the index"
    )
