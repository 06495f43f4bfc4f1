"""The states of a table that an index goes through: a change makes the next, or is undone."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from sluice.encoders.foundation.disk.files import read_json, write_json
from sluice.encoders.foundation.errors import IndexFormatError, SluiceError
from sluice.indexing.databases.pgvector.connection import connected
from sluice.indexing.databases.pgvector.settings import Column, Settings
from sluice.indexing.databases.pgvector.table import Table
from sluice.indexing.storage.arrays import fact

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
