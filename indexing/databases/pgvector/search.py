"""Searches a table of vectors: exactly, or along its HNSW graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from sluice.indexing.databases.pgvector.connection import as_parameter
from sluice.indexing.databases.pgvector.settings import Column, Settings
from sluice.indexing.databases.pgvector.table import OPERATORS, Table
from sluice.indexing.hits import Hits, Rows
from sluice.indexing.storage.exact_scores import Metric

EF_SEARCH, SCANNED = 100, 20_000  # candidates of a walk; vectors that a filter may make it look at
MOST_EF = 1_000  # that pgvector takes
EXACT_ROWS = 10_000  # allowed rows up to which all of them are scored
TOGETHER = 64  # queries on their way at a time
# What the planner of a connection was told last.
_planned: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Asked:
    """What a search looks among: the rows of a state, those of ``keep``, and a filter in SQL.

    ``deleted`` is whether the state has deletions.
    """

    rows: int
    state: int
    deleted: bool
    keep: Rows | None
    where: str
    values: Sequence[Any]

    @property
    def filtered(self) -> bool:
        """Whether some rows of the state are left out."""
        return self.deleted or self.keep is not None or bool(self.where)


@dataclass(frozen=True)
class Walk:
    """How far a search along the graph goes."""

    ef_search: int = EF_SEARCH
    max_scan_tuples: int = SCANNED


class Answer(NamedTuple):
    """The nearest rows of one query, and their distances."""

    rows: NDArray[np.int64]
    distances: NDArray[np.float64]


def search(
    connection: Any,
    table: Table,
    metric: Metric,
    queries: Sequence[bytes],
    k: int,
    asked: Asked,
    walk: Walk | None,
    *,
    graph: bool,
) -> Hits:
    """Return the ``k`` nearest rows of each encoded query, ties by row; exactly without a walk.

    ``graph`` is whether the table has one. A walk that finds fewer than ``k`` is followed by an
    exact search.
    """
    exact = walk is None or (asked.keep is not None and len(asked.keep) <= EXACT_ROWS)
    _set_walk(connection, None if exact else walk, k, filtered=asked.filtered)
    # Rows of a change under way are rare: their hits are thrown away, and the query asked again,
    # which is quicker than a condition that every row is compared with.
    free = exact and not asked.filtered
    statement, values = _statement(table, metric, asked, k, exact=exact and graph, free=free)
    found = list(_answers(connection, statement, table, values, queries))
    again = [
        place
        for place, answer in enumerate(found)
        if (free and (answer.rows >= asked.rows).any()) or (not exact and len(answer.rows) < k)
    ]
    if again:
        _set_walk(connection, None, k, filtered=True)
        statement, values = _statement(table, metric, asked, k, exact=graph, free=False)
        answers = _answers(connection, statement, table, values, [queries[at] for at in again])
        for place, answer in zip(again, answers, strict=True):
            found[place] = answer
    hits = Hits.missing(len(queries), k)
    for place, (rows, distances) in enumerate(found):
        if table.column == "sparsevec":  # without a shared term no hit; these come last
            shared = distances < 0
            rows, distances = rows[shared], distances[shared]
        hits.rows[place, : len(rows)] = rows
        hits.scores[place, : len(rows)] = -distances if metric != "l2" else -(distances**2)
    # l2 is squared here: what the database ordered by may have become equal.
    return hits.sorted() if metric == "l2" or not exact else hits


def _statement(
    table: Table, metric: Metric, asked: Asked, k: int, *, exact: bool, free: bool
) -> tuple[str, list[Any]]:
    """Return the statement, whose first parameter is the query, and the values of the others.

    Numbers stand in the text: the planner estimates a parameter without knowing it. ``exact`` is to
    pass by a graph; ``free`` leaves out that rows are of the state.
    """
    sign = OPERATORS[metric]
    parts, values = [] if free else [f"row < {asked.rows:d}"], list[Any]()
    if asked.deleted:
        parts.append(f"(died IS NULL OR died > {asked.state:d})")
    if asked.keep is not None:
        parts.append("row = ANY(%s::bigint[])")
        values.append(asked.keep.tolist())
    if asked.where:
        parts.append(asked.where)
        values += asked.values
    # The graph serves the bare operator alone: + 0 keeps the planner from it.
    nearest = f"(embedding {sign} %s) + 0" if exact else f"embedding {sign} %s"
    where = f"WHERE {' AND '.join(parts)}" if parts else ""
    text = (
        f"SELECT row, near FROM (SELECT row, {nearest} AS near FROM {{table}} {where}) AS rows "
        f"ORDER BY near, row LIMIT {k:d}"
    )
    return table.sql(text), values


def _answers(
    connection: Any, statement: Any, table: Table, values: list[Any], queries: Sequence[bytes]
) -> Iterator[Answer]:
    def ask(query: bytes) -> Any:
        return connection.execute(
            statement, [as_parameter(query, table.column), *values], binary=True
        )

    if len(queries) == 1:
        yield _read(ask(queries[0]))
        return
    for start in range(0, len(queries), TOGETHER):
        with connection.pipeline():
            cursors = [ask(query) for query in queries[start : start + TOGETHER]]
        yield from map(_read, cursors)


def _read(cursor: Any) -> Answer:
    pairs = cursor.fetchall()
    rows, distances = zip(*pairs, strict=True) if pairs else ((), ())
    return Answer(np.array(rows, np.int64), np.array(distances, np.float64))


def _set_walk(connection: Any, walk: Walk | None, k: int, *, filtered: bool) -> None:
    """Let the planner take the graph, and sort ties of its order by row; or leave it free.

    A walk that has candidates to spare ends with them: to be able to continue takes a fifth more.
    """
    if walk is None and connection not in _planned:
        return
    taken = "on" if walk is None else "off"
    settings = {"enable_seqscan": taken, "enable_sort": taken, "enable_bitmapscan": taken}
    if walk is not None:
        ef = min(max(walk.ef_search, k), MOST_EF)
        settings |= {
            "hnsw.ef_search": str(ef),
            "hnsw.iterative_scan": "strict_order" if filtered or 2 * k > ef else "off",
            "hnsw.max_scan_tuples": str(walk.max_scan_tuples),
        }
    if _planned.get(connection, {}) == settings:
        return
    text = ", ".join("set_config(%s, %s, false)" for _ in settings)
    connection.execute(f"SELECT {text}", [part for item in settings.items() for part in item])
    _planned[connection] = settings


def differences(
    settings: Settings, column: Column | None, notes: Mapping[str, Any], lost: Sequence[float]
) -> list[str]:
    """Return a sentence for each way in which results differ from those of our exact index."""
    said = []
    if settings.method == "exact":
        said.append("exact; scores are float32 sums of the database, equal in about six digits")
    else:
        said.append(
            f"approximate: a search walks a graph with ef_search {EF_SEARCH} candidates (at most "
            f"{MOST_EF:,}), with a filter until {SCANNED:,} vectors are scanned (max_scan_tuples);"
            " a query with fewer than k hits by then is scored with all rows"
        )
        if "recall" in notes:
            said.append(
                f"recall@10 {notes['recall']:.3f} against the exact search of the same table, "
                "stored vectors as queries"
            )
    if column == "halfvec":
        said.append("vectors are stored in float16: scores are equal in about three digits")
    if column != "sparsevec" and settings.metric == "cosine":
        said.append("cosine: vectors are stored normalised")
    if lost[0] > 0:
        said.append(
            f"prune: {settings.prune} dropped {lost[0] / lost[1]:.2%} of the weight of all vectors"
        )
    return said
