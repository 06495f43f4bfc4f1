"""Reads click logs: what was shown at which position for a query, and what was clicked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.progress import progress
from sluice.retrieval.training_data.files.records import read_records
from sluice.retrieval.training_data.files.rows import Named, field_of, id_of, number_of, text_of

POSITION: Final = ("position", "rank")
QUERY: Final = ("query", "query_text")
QUERY_ID: Final = ("query_id", "query-id", "qid")
DOCUMENT: Final = ("doc_id", "document_id", "docid", "corpus-id", "corpus_id", "pid")
SESSION: Final = ("session", "session_id")
CLICKS: Final = ("clicks", "clicked", "click")
IMPRESSIONS: Final = ("impressions", "shown", "views")
FORM: Final = "{query_id or query, doc_id, position, clicked}, or clicks and impressions"
MOST: Final = 10**12  # of a count or a position
REPORTED = 10_000  # rows between two updates of the progress


@dataclass(frozen=True, slots=True)
class Shown:
    """A document shown for a query at a position (1 is the top), so often, and clicked so often."""

    place: str
    query: Named
    document: str
    position: int
    clicks: int
    impressions: int
    session: str | None


@dataclass(slots=True)
class Counts:
    """What a log holds, in memory that grows with what differs in it, not with its rows.

    ``pairs`` numbers (query key, document id); ``cells`` holds by (pair, position) impressions and
    clicks. ``queries`` and ``documents`` are named with the place of their first row.
    """

    rows: int = 0
    queries: dict[str, tuple[Named, str]] = field(default_factory=dict)
    documents: dict[str, str] = field(default_factory=dict)
    pairs: dict[tuple[str, str], int] = field(default_factory=dict)
    cells: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def add(self, shown: Shown) -> int:
        """Count one row; return the number of its pair."""
        self.rows += 1
        key = shown.query.key
        self.queries.setdefault(key, (shown.query, shown.place))
        self.documents.setdefault(shown.document, shown.place)
        pair = self.pairs.setdefault((key, shown.document), len(self.pairs))
        cell = self.cells.setdefault((pair, shown.position), [0, 0])
        cell[0] += shown.impressions
        cell[1] += shown.clicks
        return pair


def read_log(paths: Sequence[Path]) -> Iterator[Shown]:
    """Stream the rows of logs: JSON lines, tsv or csv with a header, parquet; ``.gz`` too.

    A row is one impression (``clicked``: 0 or 1), or the sum of many (``clicks`` and
    ``impressions``); rows of a ``session`` stand together. ``DataError`` with file and line for a
    position below 1, more clicks than impressions, a missing field, and a file without rows.
    """
    for path in paths:
        with progress(f"read {path.name}", None, "rows") as advance:
            count = 0
            for count, (place, value) in enumerate(read_records(path, POSITION), 1):
                yield shown_of(place, value)
                if count % REPORTED == 0:
                    advance(REPORTED)
            if not count:
                raise DataError(f"{path}: empty; expected rows such as {FORM}")
            advance(count % REPORTED)


def shown_of(place: str, value: Mapping[str, Any]) -> Shown:
    """Return a row of a log; ``DataError`` says what is wrong with it."""
    name = field_of(place, value, QUERY_ID, "query", needed=False)
    text = field_of(place, value, QUERY, "query", needed=name is None)
    query = Named(
        None if name is None else id_of(place, name, "query_id"),
        None if text is None else text_of(place, text, "query"),
    )
    document = id_of(place, field_of(place, value, DOCUMENT, "document"), "doc_id")
    shown_at = field_of(place, value, POSITION, "position")
    if isinstance(shown_at, bool):
        raise DataError(f"{place}: position is {shown_at}, expected a whole number")
    position = _whole(place, shown_at, "position")
    if position < 1:
        raise DataError(f"{place}: position is {position}; positions count from 1, the top")
    clicks = _whole(place, field_of(place, value, CLICKS, "clicks"), "clicks")
    number = field_of(place, value, IMPRESSIONS, "impressions", needed=False)
    impressions = 1 if number is None else _whole(place, number, "impressions")
    if clicks < 0 or impressions < 1:
        raise DataError(
            f"{place}: clicks is {clicks} of {impressions} impressions; expected 0 clicks or more "
            "of 1 impression or more"
        )
    if clicks > impressions:
        more = "; a row without impressions is one, and its clicks are 0 or 1"
        raise DataError(
            f"{place}: {clicks} clicks of {impressions} impressions; count a document once each "
            f"time it is shown{more if number is None else ''}"
        )
    session = field_of(place, value, SESSION, "session", needed=False)
    if session is not None:
        session = id_of(place, session, "session")
    return Shown(place, query, document, position, clicks, impressions, session)


def sessions_of(rows: Iterator[Shown]) -> Iterator[list[Shown]]:
    """Yield the rows of each session, from the top down.

    ``DataError`` for rows without a session or of several impressions, and sessions whose rows do
    not stand together, or in the order of their positions, or that ask two queries.
    """
    seen: set[int] = set()
    session: list[Shown] = []
    for row in rows:
        if row.session is None:
            raise DataError(
                f"{row.place}: no session: this click model follows a user down the page; add "
                "'session' to every row, or take model: pbm, which needs counts alone"
            )
        if row.impressions != 1:
            raise DataError(
                f"{row.place}: {row.impressions} impressions; in a session a document is shown once"
            )
        if session and row.session == session[-1].session:
            if row.query.key != session[-1].query.key:
                raise DataError(
                    f"{row.place}: session {row.session!r} asks another query than its first row; "
                    "a session is one page of results: number the pages"
                )
            if row.position <= session[-1].position:
                raise DataError(
                    f"{row.place}: position {row.position} after {session[-1].position} in session "
                    f"{row.session!r}; sort the rows of a session by position, each once"
                )
        else:
            if session:
                yield session
            if hash(row.session) in seen:
                raise DataError(
                    f"{row.place}: session {row.session!r} continues here, after others; sort the "
                    "log by session and position"
                )
            seen.add(hash(row.session))
            session = []
        session.append(row)
    if session:
        yield session


def unknown(
    known: Mapping[str, Any], places: Mapping[str, str], what: str, name: str, *, skip: bool
) -> set[str]:
    """Return the ids that a collection lacks.

    ``DataError`` at the first row that has one unless they are to ``skip``, and if it lacks all.
    """
    absent = [one for one in places if one not in known]
    if absent and (not skip or len(absent) == len(places)):
        remedy = "remove these rows, or set unknown: skip"
        if len(absent) == len(places):
            remedy = "the log belongs to another collection: name that as dataset"
        raise DataError(
            f"{places[absent[0]]}: {what} {absent[0]!r} is not in {name}, nor are "
            f"{len(absent) - 1:,} others of the log's {len(places):,}; {remedy}"
        )
    return set(absent)


def _whole(place: str, value: Any, what: str) -> int:
    number = number_of(place, value, what)
    if number != int(number) or abs(number) > MOST:
        raise DataError(
            f"{place}: {what} is {value!r:.60}, expected a whole number, at most {MOST:,}"
        )
    return int(number)
