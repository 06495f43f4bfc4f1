"""Click logs: what was shown, looked at and clicked; simulated users whose truth is known."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.progress import progress
from sluice.retrieval.training_data.files.columns import read_records
from sluice.retrieval.training_data.files.rows import Named, field_of, id_of, number_of, text_of

Chance = Callable[[str, str], float]  # of a query and a document


def simulated_log(
    lists: Mapping[str, Sequence[str]],
    relevance: Chance,
    *,
    pages: int,
    model: Literal["pbm", "cascade", "dbn"] = "pbm",
    examination: Sequence[float] = (),
    satisfaction: Chance | None = None,
    shuffle: float = 1.0,
    seed: int = 13,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``pages`` pages of results for each query, clicked as the model says.

    ``lists`` are the documents that a page of each query shows, best first; on each page they are
    put in order of their place plus a normal deviate of ``shuffle``, so that documents change
    places. With ``pbm`` position k is looked at with ``examination[k - 1]``, and a document clicked
    there with ``relevance(query, document)``. In ``cascade`` users look from the top down and leave
    after their first click, in ``dbn`` after one that satisfies, with ``satisfaction``.
    """
    if model == "pbm" and len(examination) < max(map(len, lists.values()), default=0):
        raise ConfigError(
            f"examination: {len(examination)} positions, fewer than a page has; give one for each"
        )
    draw = random.Random(f"clicks {seed}")
    session = 0
    for query, documents in lists.items():
        for _ in range(pages):
            session += 1
            places = {name: draw.gauss(place, shuffle) for place, name in enumerate(documents)}
            gone = False
            for position, name in enumerate(sorted(places, key=lambda each: places[each]), 1):
                looks = draw.random() < examination[position - 1] if model == "pbm" else not gone
                clicked = looks and draw.random() < relevance(query, name)
                if clicked and model != "pbm":
                    satisfied = 1.0 if satisfaction is None else satisfaction(query, name)
                    gone = model == "cascade" or draw.random() < satisfied
                yield {
                    "session": str(session), "query_id": query, "doc_id": name,
                    "position": position, "clicked": int(clicked),
                }  # fmt: skip


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


STEPS: Final = 5_000  # of expectation maximisation, at most
SETTLED: Final = 1e-7  # the largest change of a probability in the last step

Below: TypeAlias = tuple[tuple[int, int], ...]  # pairs and positions


class Looks(NamedTuple):
    """Pages of results by what a user certainly looked at, and may have looked at after it.

    ``seen`` counts by pair, ``by_position`` by position, what stands above the deciding click, that
    click, and pages without any. Pages with the same deciding click and the same documents below
    are one group: ``last`` ``[G]`` is the pair clicked and ``often`` ``[G]`` their number; below it
    stand, group by group, the pairs ``below`` ``[C]`` at ``below_positions``.
    """

    seen: Counter[int]
    by_position: Counter[int]
    last: NDArray[np.int64]
    often: NDArray[np.float64]
    below: NDArray[np.int64]
    below_positions: NDArray[np.int64]
    groups: NDArray[np.int64]

    def seen_by_pair(self, pairs: int) -> NDArray[np.float64]:
        """Return ``seen`` as an array ``[pairs]``."""
        return np.array([self.seen[pair] for pair in range(pairs)], np.float64)

    def stayed(self, clicks: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
        """Return by group the chance that a user continued after the click, and the steps taken.

        By expectation maximisation over attraction a and satisfaction s: after the last click on u
        a user continued with ``(1 - s_u) A / (s_u + (1 - s_u) A)``, A the product of ``1 - a_v``
        over the documents v below. ``clicks`` ``[P]`` are those of each pair.
        """
        pairs = len(clicks)
        seen, some = self.seen_by_pair(pairs), np.maximum(clicks, 1.0)
        attraction = clicks / np.maximum(seen, 1.0)
        stayed = np.zeros(len(self.last))
        step = 0
        while step < STEPS:
            step += 1
            credited = np.bincount(self.last, self.often * (1.0 - stayed), pairs)
            satisfied = (credited / some)[self.last]
            silent = np.log1p(-np.minimum(attraction, 1.0 - 1e-12))[self.below]
            ignored = np.exp(np.bincount(self.groups, silent, len(self.last)))
            going = (1.0 - satisfied) * ignored
            before, stayed = stayed, going / np.maximum(satisfied + going, 1e-300)
            looked = np.bincount(self.below, (self.often * stayed)[self.groups], pairs)
            attraction = clicks / np.maximum(seen + looked, 1.0)
            if not len(stayed) or np.abs(stayed - before).max() < SETTLED:
                break
        return stayed, step


def looks_of(sessions: Iterable[Sequence[Shown]], counts: Counts, *, first: bool) -> Looks:
    """Count what users looked at; the deciding click is the first of a page, or its last."""
    seen: Counter[int] = Counter()
    by_position: Counter[int] = Counter()
    groups: Counter[tuple[int, Below]] = Counter()
    for session in sessions:
        pairs = [counts.add(row) for row in session]
        clicked = [place for place, row in enumerate(session) if row.clicks]
        deciding = len(session) - 1 if not clicked else clicked[0] if first else clicked[-1]
        seen.update(pairs[: deciding + 1])
        by_position.update(row.position for row in session[: deciding + 1])
        if clicked:
            places = () if first else range(deciding + 1, len(session))
            below = tuple((pairs[place], session[place].position) for place in places)
            groups[pairs[deciding], below] += 1
    cells = [(number, *one) for number, (_, below) in enumerate(groups) for one in below]
    columns = np.array(cells, np.int64).reshape(-1, 3)
    return Looks(
        seen, by_position, np.array([last for last, _ in groups], np.int64),
        np.array(list(groups.values()), np.float64),
        below=columns[:, 1], below_positions=columns[:, 2], groups=columns[:, 0],
    )  # fmt: skip
