"""Reads queries in the forms that people and tracks have: TREC topics, tables, lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.foundation.errors import DataError, listed, suggest
from sluice.retrieval.documents.ids import distinct, id_text
from sluice.retrieval.documents.json_files import read_lines
from sluice.retrieval.documents.readers.tables import form_of_table, open_table

QUERY_ID = ("_id", "id", "qid", "query_id", "query-id", "queryid", "topic_id", "topic", "number",
            "num")  # fmt: skip
QUERY_TEXT = ("text", "query", "title", "question", "query_text", "contents", "content", "body")

TOPIC = re.compile(r"<top>(.*?)(?=</top>|<top>|\Z)", re.S)
XML_TOPIC = re.compile(r"<topic\b([^>]*)>(.*?)</topic>", re.S)
NUMBER = re.compile(r"<num>\s*(?:Number:)?\s*([^\s<]+)", re.I)
ATTRIBUTE = re.compile(r"""(?:number|id|num|qid)\s*=\s*["']([^"']+)["']""", re.I)
TITLE = re.compile(r"<(?:title|query)>\s*(?:Topic:)?(.*?)(?=<|\Z)", re.S | re.I)

Query = tuple[str, str]  # id, text
Placed = Callable[[], Iterator[tuple[str, Query]]]  # streams queries after their places


class Columns(NamedTuple):
    """The columns that the caller named; None, and no texts, are to be found by their names."""

    id: str | None = None
    texts: tuple[str, ...] = ()


def read_topics(
    path: Path, *, id: str | None = None, text: str | Sequence[str] | None = None
) -> Iterator[Query]:
    """Stream the (id, text) pairs of a file of queries.

    TREC topics (``<num>``, ``<title>``; descriptions and narratives are not read), a table (csv,
    tsv, JSON lines, JSON, Parquet, ...), two columns ``id<TAB>text`` without a header, or one query
    a line, whose ids are then 1, 2, ... Columns are found by their usual names unless ``id`` and
    ``text`` name them; the texts of several are joined by spaces. Raises ``DataError`` with the
    line for anything else, and for an id twice.
    """
    return distinct(placed_topics(path, id=id, text=text))


def placed_topics(
    path: Path, *, id: str | None = None, text: str | Sequence[str] | None = None
) -> Placed:
    """Return what streams the queries that ``read_topics`` reads, each after its place."""
    columns = Columns(id, (text,) if isinstance(text, str) else tuple(text or ()))
    form = form_of_table(path)
    if form not in (None, "tsv"):
        return partial(_rows, path, columns)
    if form is None and (kind := _marked(path, columns)) is not None:
        return kind
    first = next(read_lines(path), None)
    if first is None:
        raise DataError(f"{path}: empty; expected one query a line")
    if form is None and "\t" not in first[1]:
        _refuse(columns, path, "a query in each line")
        return partial(_lines, path)
    return partial(_columns, path, columns)


def _marked(path: Path, columns: Columns) -> Placed | None:
    """Return the reader of a file whose first lines hold marks, None for plain lines."""
    for _, line in islice(read_lines(path), 20):
        bare = line.strip()
        for marks, topics in ((("<top>",), TOPIC), (("<topic ", "<topic>"), XML_TOPIC)):
            if bare.startswith(marks):
                _refuse(columns, path, "TREC topics")
                return partial(_trec, path, topics=topics)
        if bare.startswith("{"):
            return partial(_json_lines, path, columns)
    return None


def _refuse(columns: Columns, path: Path, form: str) -> None:
    """Raise ``DataError`` where columns are named of a file that has none."""
    if any(columns):
        names = [name for name in (columns.id, *columns.texts) if name is not None]
        raise DataError(
            f"{path}: holds {form} and has no columns, so none is named "
            f"{listed(map(repr, names))}; leave the columns of queries out"
        )


def _trec(path: Path, *, topics: re.Pattern[str]) -> Iterator[tuple[str, Query]]:
    text = "\n".join(line for _, line in read_lines(path))
    for number, found in enumerate(topics.finditer(text), 1):
        place = f"{path}: topic {number}"
        inside = found.groups()[-1]
        name = NUMBER.search(inside) or ATTRIBUTE.search(found[1])
        title = TITLE.search(inside)
        if name is None or title is None:
            lacking = "<num>" if name is None else "<title>"
            raise DataError(f"{place}: no {lacking}; expected <num> and <title> in every topic")
        yield place, (name[1], " ".join(title[1].split()))


def _json_lines(path: Path, columns: Columns) -> Iterator[tuple[str, Query]]:
    from sluice.retrieval.documents.json_files import read_objects

    rows = ((f"{path}:{n}", row) for n, row in read_objects(path, "{'id': ..., 'text': ...}"))
    return _named(path, rows, columns)


def _rows(path: Path, columns: Columns) -> Iterator[tuple[str, Query]]:
    return _named(path, open_table(path).rows(), columns)


def _lines(path: Path) -> Iterator[tuple[str, Query]]:
    for number, (line_number, line) in enumerate(read_lines(path), 1):
        yield f"{path}:{line_number}", (str(number), line.strip())


def _columns(path: Path, columns: Columns) -> Iterator[tuple[str, Query]]:
    """Yield the queries of lines with tabs; the first line may name the columns."""
    return _named(path, _tabbed(path, columns), columns)


def _tabbed(path: Path, columns: Columns) -> Iterator[tuple[str, Mapping[str, Any]]]:
    names: list[str] | None = None
    for number, line in read_lines(path):
        place, cells = f"{path}:{number}", line.split("\t")
        if names is None:
            names = [cell.strip() for cell in cells]
            lowered = {name.lower() for name in names}
            if any(columns) or (lowered & set(QUERY_ID) and lowered & set(QUERY_TEXT)):
                continue
            names = ["id", "text"]
        if len(cells) != len(names):
            raise DataError(
                f"{place}: {len(cells)} tab-separated columns, expected {len(names)}: id<TAB>text, "
                "or a first line that names the columns"
            )
        yield place, dict(zip(names, cells, strict=True))


def _named(
    path: Path,
    rows: Iterator[tuple[str, Mapping[str, Any]]],
    columns: Columns,
) -> Iterator[tuple[str, Query]]:
    name, texts = "", columns.texts
    for number, (place, row) in enumerate(rows, 1):
        if number == 1:
            name = _column(path, row, columns.id, QUERY_ID, "id")
            named = [_column(path, row, each, QUERY_TEXT, "text") for each in texts or (None,)]
            texts = tuple(dict.fromkeys(named))
        query_id = row.get(name, "") if name else number
        yield place, (id_text(f"{place}: {name!r}", query_id), _text(place, row, texts))


def _text(place: str, row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return a row's query: the text of its column, or those of several joined by spaces.

    Of several a row may lack some, but not all.
    """
    cells = {column: row.get(column) for column in columns}
    if len(columns) > 1:
        cells = {column: text for column, text in cells.items() if text is not None} or cells
    for column, text in cells.items():
        if not isinstance(text, str):
            raise DataError(f"{place}: {column!r} is {text!r:.60}, expected a text")
    texts = [str(text) for text in cells.values()]
    return texts[0] if len(columns) == 1 else " ".join(text for text in texts if text.strip())


def _column(
    path: Path, row: Mapping[str, Any], asked: str | None, names: Sequence[str], what: str
) -> str:
    """Return the column that holds the ids or texts of queries; "" for ids that are not there."""
    if asked is not None:
        if asked not in row:
            raise DataError(
                f"{path}: no column {asked!r}; its columns are {listed(map(repr, row))}"
                f"{suggest(asked, map(str, row))}"
            )
        return asked
    by_name = {str(name).strip().lower(): str(name) for name in row}
    found = next((by_name[name] for name in names if name in by_name), None)
    if found is None and what == "text":
        raise DataError(
            f"{path}: no column of query texts; its columns are {listed(map(repr, row))}; call "
            "it query or text, or name it: columns: {query: COLUMN}"
        )
    return found or ""
