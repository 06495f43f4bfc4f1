"""Searches a table of vectors: exactly, or along its HNSW graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from sluice.indexing.databases.pgvector.connection import as_parameter
from sluice.indexing.databases.pgvector.table import OPERATORS, Table
from sluice.indexing.hits import Hits
from sluice.indexing.live_rows import Rows
from sluice.indexing.storage.exact_scores import Metric

EF_SEARCH, SCANNED = 100, 20_000  # candidates of a walk; vectors that a filter may make it look at
MOST_EF = 1_000  # that pgvector takes
EXACT_ROWS = 10_000  # allowed rows up to which all of them are scored
TOGETHER = 64  # queries on their way at a time
# What the planner of a connection was told last.
_planned: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Asked:
    """What a search looks among: the rows of a state, those of ``keep``, and a filter in SQL."""

    rows: int
    state: int
    keep: Rows | None
    where: str
    values: Sequence[Any]


@dataclass(frozen=True)
class Walk:
    """How far a search along the graph goes."""

    ef_search: int = EF_SEARCH
    max_scan_tuples: int = SCANNED


def search(
    connection: Any,
    table: Table,
    metric: Metric,
    queries: Sequence[bytes],
    k: int,
    asked: Asked,
    walk: Walk | None,
) -> Hits:
    """Return the ``k`` nearest rows of each encoded query, ties by row; exactly without a walk.

    A walk that finds fewer than ``k`` is followed by an exact search.
    """
    exact = walk is None or (asked.keep is not None and len(asked.keep) <= EXACT_ROWS)
    _set_walk(connection, None if exact else walk, k)
    statement, values = _statement(table, metric, asked, exact=exact)
    found = list(_answers(connection, statement, table, values, queries, k))
    short = [place for place, answer in enumerate(found) if len(answer) < k]
    if short and not exact:
        _set_walk(connection, None, k)
        statement, values = _statement(table, metric, asked, exact=True)
        again = _answers(connection, statement, table, values, [queries[at] for at in short], k)
        for place, answer in zip(short, again, strict=True):
            found[place] = answer
    hits = Hits.missing(len(queries), k)
    for place, answer in enumerate(found):
        rows = np.fromiter((row for row, _ in answer), np.int64, len(answer))
        distances = np.fromiter((each for _, each in answer), np.float64, len(answer))
        if table.column == "sparsevec":  # without a shared term no hit; these come last
            shared = distances < 0
            rows, distances = rows[shared], distances[shared]
        scores = -distances if metric != "l2" else -(distances**2)
        hits.rows[place, : len(rows)] = rows
        hits.scores[place, : len(rows)] = scores
    # l2 is squared here: what the database ordered by may have become equal.
    return hits.sorted() if metric == "l2" or not exact else hits


def _statement(table: Table, metric: Metric, asked: Asked, *, exact: bool) -> tuple[str, list[Any]]:
    """Return the statement, whose last parameters are the query and ``k``, and the first ones."""
    sign = OPERATORS[metric]
    parts, values = ["row < %s", "(died IS NULL OR died > %s)"], [asked.rows, asked.state]
    if asked.keep is not None:
        parts.append("row = ANY(%s::bigint[])")
        values.append(asked.keep.tolist())
    if asked.where:
        parts.append(asked.where)
        values += asked.values
    # The graph serves the bare operator alone: + 0 keeps the planner from it, if there is one.
    nearest = f"embedding {sign} %s" if not exact else f"(embedding {sign} %s) + 0"
    text = (
        f"SELECT row, near FROM (SELECT row, {nearest} AS near FROM {{table}} "
        f"WHERE {' AND '.join(parts)}) AS rows ORDER BY near, row LIMIT %s"
    )
    return table.sql(text), values


def _answers(
    connection: Any,
    statement: Any,
    table: Table,
    values: list[Any],
    queries: Sequence[bytes],
    k: int,
) -> Iterator[list[tuple[int, float]]]:
    def ask(query: bytes) -> Any:
        parameters = [as_parameter(query, table.column), *values, k]
        return connection.execute(statement, parameters, binary=True)

    if len(queries) == 1:
        yield ask(queries[0]).fetchall()
        return
    for start in range(0, len(queries), TOGETHER):
        with connection.pipeline():
            cursors = [ask(query) for query in queries[start : start + TOGETHER]]
        for cursor in cursors:
            yield cursor.fetchall()


def _set_walk(connection: Any, walk: Walk | None, k: int) -> None:
    """Let the planner take the graph, and sort ties of its order by row; or leave it free."""
    if walk is None and connection not in _planned:
        return
    taken = "on" if walk is None else "off"
    settings = {"enable_seqscan": taken, "enable_sort": taken, "enable_bitmapscan": taken}
    if walk is not None:
        settings |= {
            "hnsw.ef_search": str(min(max(walk.ef_search, k), MOST_EF)),
            "hnsw.iterative_scan": "strict_order",
            "hnsw.max_scan_tuples": str(walk.max_scan_tuples),
        }
    if _planned.get(connection, {}) == settings:
        return
    text = ", ".join("set_config(%s, %s, false)" for _ in settings)
    connection.execute(f"SELECT {text}", [part for item in settings.items() for part in item])
    _planned[connection] = settings
