"""What a log says: the candidates of each query, and each assessor's last word on them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from sluice.encoders.foundation.disk.files import lock
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.serving.judging.entries import (
    Entry,
    Judgement,
    Pooled,
    check_header,
    read_line,
)

log = logging.getLogger("sluice.serve")

Qrels: TypeAlias = dict[str, dict[str, int]]  # query id -> {document id: grade}


class Judgements:
    """The state that a log's entries lead to, one after another."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}  # of queries
        self.pools: dict[str, dict[str, None]] = {}  # candidates in the order they were pooled
        self.pooled_by: dict[str, set[tuple[tuple[str, ...], int]]] = {}  # pipelines and depth
        self._said: dict[str, dict[str, dict[str, Judgement]]] = {}  # query, assessor, document
        self._changes: dict[str, list[Judgement]] = {}  # by assessor: what each entry replaced

    def apply(self, entry: Entry) -> None:
        """Take the next entry."""
        if isinstance(entry, Pooled):
            self.texts[entry.query] = entry.text
            self.pools.setdefault(entry.query, {}).update(dict.fromkeys(entry.documents))
            self.pooled_by.setdefault(entry.query, set()).add((entry.pipelines, entry.depth))
            return
        said = self._said.setdefault(entry.query, {}).setdefault(entry.assessor, {})
        changes = self._changes.setdefault(entry.assessor, [])
        if not entry.undo:
            nothing = replace(entry, grade=None, skipped=False, comment="", time="")
            changes.append(said.get(entry.document, nothing))
        else:
            place = _latest(changes, lambda each: _pair(each) == _pair(entry))
            if place is not None:
                del changes[place]
        said[entry.document] = entry

    def of(self, query: str, assessor: str) -> Mapping[str, Judgement]:
        """Return an assessor's last word on each document of a query."""
        return self._said.get(query, {}).get(assessor, {})

    def undoing(self, assessor: str, queries: Collection[str]) -> Judgement | None:
        """Return the entry that takes back an assessor's last one on any of these queries.

        None if there is none.
        """
        changes = self._changes.get(assessor, [])
        place = _latest(changes, lambda each: each.query in queries)
        return None if place is None else replace(changes[place], undo=True)

    @property
    def assessors(self) -> list[str]:
        """The names of all who said anything, in the order of their first entries."""
        return list(self._changes)

    def __iter__(self) -> Iterator[Judgement]:
        """Yield what counts: every assessor's last word on every document, also a skip."""
        for by_assessor in self._said.values():
            for said in by_assessor.values():
                yield from said.values()

    def grades_of(self, assessor: str) -> Qrels:
        """Return the judgements of one assessor."""
        qrels: Qrels = {}
        for query, by_assessor in self._said.items():
            said = by_assessor.get(assessor, {})
            graded = {doc: each.grade for doc, each in said.items() if each.grade is not None}
            if graded:
                qrels[query] = graded
        return qrels

    def grades_by_pair(self, assessors: Sequence[str]) -> dict[str, dict[str, list[int]]]:
        """Return all grades that documents got from these assessors, in their order."""
        grades: dict[str, dict[str, list[int]]] = {}
        for assessor in assessors:
            for query, graded in self.grades_of(assessor).items():
                for document, grade in graded.items():
                    grades.setdefault(query, {}).setdefault(document, []).append(grade)
        return grades


def _pair(said: Judgement) -> tuple[str, str]:
    return said.query, said.document


def _latest(changes: Sequence[Judgement], fits: Callable[[Judgement], bool]) -> int | None:
    """Return the place of the last change that fits."""
    return next((n for n in reversed(range(len(changes))) if fits(changes[n])), None)


def read_judgements(path: Path) -> Judgements:
    """Read a log, also one that a service adds to meanwhile.

    A last line without an end, which a killed writer left, is not read. ``DataError`` names the
    line for anything else that is not an entry, ``ConfigError`` a file that is not there.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; sluice serve --judge writes one")
    with path.open("rb") as stream:
        lock(stream, shared=True)
        data = stream.read()
    state = Judgements()
    _, torn = take_lines(state, path, data, first=1)
    if torn:
        log.warning("%s: its last line is not complete, and is not read", path)
    return state


def take_lines(state: Judgements, path: Path, data: bytes, first: int) -> tuple[int, bytes]:
    """Apply complete lines, the first numbered ``first``; return their count and what is left."""
    *lines, rest = data.split(b"\n")
    entries = []
    for number, line in enumerate(lines, first):
        where = f"{path}:{number}"
        if number == 1:
            check_header(line, where)
        elif line.strip():
            entries.append(read_line(line, where))
    if first == 1 and not lines:
        check_header(rest, path)
    for entry in entries:
        state.apply(entry)
    return len(lines), rest
