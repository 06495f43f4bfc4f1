"""The lines of a log of judgements: a header, pools of candidates, and what assessors said."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from sluice.encoders.foundation.disk.files import check_version, lock
from sluice.encoders.foundation.errors import ConfigError, DataError

FORMAT = 1
HEADER = {"kind": "judgements", "format": FORMAT}
GRADES = (0, 1, 2, 3)
LONGEST_NAME = 60  # characters of an assessor's name
LONGEST_COMMENT = 2_000


@dataclass(frozen=True, slots=True)
class Pooled:
    """Candidates of a query that no earlier entry has.

    ``text`` is the query's, ``pipelines`` searched to ``depth`` each.
    """

    query: str
    text: str
    documents: tuple[str, ...]
    pipelines: tuple[str, ...]
    depth: int
    time: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an assessor says of a document; the last one of the three counts.

    ``grade`` is None for a document that was skipped, or whose judgement was taken back. With
    ``undo`` the entry restores what the assessor's last one had changed.
    """

    query: str
    document: str
    assessor: str
    grade: int | None
    skipped: bool = False
    comment: str = ""
    undo: bool = False
    time: str = ""


Entry: TypeAlias = Pooled | Judgement


def header_line() -> bytes:
    """Return the first line of a log."""
    return _line(HEADER)


def line_of(entry: Entry) -> bytes:
    """Return an entry's line; what is false or empty is left out."""
    if isinstance(entry, Pooled):
        return _line(
            {
                "kind": "pool",
                "query": entry.query,
                "text": entry.text,
                "documents": entry.documents,
                "pipelines": entry.pipelines,
                "depth": entry.depth,
                "time": entry.time,
            }
        )
    said: dict[str, Any] = {
        "kind": "judgement",
        "query": entry.query,
        "document": entry.document,
        "assessor": entry.assessor,
        "grade": entry.grade,
    }
    extra = {"skipped": entry.skipped, "comment": entry.comment, "undo": entry.undo}
    said |= {name: value for name, value in extra.items() if value}
    return _line({**said, "time": entry.time})


def check_header(line: bytes, where: object) -> None:
    """Raise ``DataError`` unless a line is the first of a log."""
    content = _object(line)
    if content is None or content.get("kind") != HEADER["kind"]:
        raise DataError(
            f"{where}: not a log of judgements, whose first line is {_line(HEADER).decode()!r:.80}"
            "; give the name of another file, or of a new one"
        )
    check_version(content.get("format"), FORMAT, where, DataError)


def read_line(line: bytes, where: object) -> Entry:
    """Return the entry of a line; ``DataError`` for anything else."""
    content = _object(line)
    try:
        kind = None if content is None else content.get("kind")
        if content is not None and kind == "pool":
            return _pooled(content)
        if content is not None and kind == "judgement":
            return _judgement(content)
    except _WrongError as error:
        raise DataError(f"{where}: {error}; mend the line, or remove it") from None
    raise DataError(
        f"{where}: {line[:60]!r}; expected a JSON object of kind pool or judgement; mend the line, "
        "or remove it"
    )


def is_entry(line: bytes) -> bool:
    """Return whether a line is a whole one, such as the last of a file without an end."""
    try:
        read_line(line, "")
    except DataError:
        return False
    return True


class _WrongError(Exception):
    """A field with a value that is none of its own."""


def _pooled(content: Mapping[str, Any]) -> Pooled:
    return Pooled(
        query=_text(content, "query"),
        text=_text(content, "text"),
        documents=_texts(content, "documents"),
        pipelines=_texts(content, "pipelines"),
        depth=_number(content, "depth"),
        time=_text(content, "time"),
    )


def _judgement(content: Mapping[str, Any]) -> Judgement:
    grade = content.get("grade")
    if grade is not None and (type(grade) is not int or grade not in GRADES):
        raise _WrongError(f"grade is {grade!r:.40}, expected 0 to {GRADES[-1]}, or null")
    flags = {name: content.get(name, False) for name in ("skipped", "undo")}
    for name, value in flags.items():
        if type(value) is not bool:
            raise _WrongError(f"{name} is {value!r:.40}, expected true or false")
    if flags["skipped"] and grade is not None:
        raise _WrongError(f"it is skipped and has grade {grade}, expected one of the two")
    return Judgement(
        query=_text(content, "query"),
        document=_text(content, "document"),
        assessor=_text(content, "assessor"),
        grade=grade,
        comment=_text({"comment": "", **content}, "comment"),
        time=_text(content, "time"),
        **flags,
    )


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    if not isinstance(value, str):
        raise _WrongError(f"{name} is {value!r:.40}, expected a text")
    return value


def _texts(content: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = content.get(name)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _WrongError(f"{name} is {value!r:.40}, expected a list of texts")
    return tuple(value)


def _number(content: Mapping[str, Any], name: str) -> int:
    value = content.get(name)
    if type(value) is not int or value < 1:
        raise _WrongError(f"{name} is {value!r:.40}, expected 1 or more")
    return value


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _line(content: Mapping[str, Any] | Sequence[Any]) -> bytes:
    # ASCII alone: an id may have a lone surrogate, which UTF-8 cannot hold.
    return json.dumps(content).encode("ascii") + b"\n"


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

    def judged(self, query: str, assessor: str) -> Mapping[str, Judgement]:
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
