"""Rows of a file as wholes: lists put together from many, and rows that need no other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from sluice.encoders.foundation.bounded_input import same_text_key
from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.training_data.files.rows import Labelled, Row


def together(rows: Iterable[Row]) -> list[Row]:
    """Return the rows, with the graded ones of one query as one row in the place of its first.

    A document graded twice keeps the later grade.
    """
    merged: list[Row] = []
    places: dict[str, int] = {}
    lists: dict[int, dict[str, Labelled]] = {}
    wrong: dict[int, dict[str, None]] = {}  # negative queries, each once
    for row in rows:
        if not row.graded:
            merged.append(row)
            continue
        key = row.query.key
        if key not in places:
            places[key] = len(merged)
            merged.append(row)
        graded = lists.setdefault(places[key], {})
        wrong.setdefault(places[key], {}).update(dict.fromkeys(row.negative_queries))
        graded.update((one.document.key, one) for one in row.documents)
    for place, documents in lists.items():
        best_first = sorted(documents.values(), key=lambda one: -one.label)
        merged[place] = merged[place]._replace(
            documents=tuple(best_first), negative_queries=tuple(wrong[place])
        )
    return merged


def streamable(rows: Iterable[Row], tested: Collection[str], limit: int | None) -> Iterator[Row]:
    """Yield rows that can be used one by one, without those of queries ``tested``, by their keys.

    Raises ``DataError`` for a row that only the whole file, or its corpus, could complete; negative
    queries are left out where their ``limit`` is 0.
    """
    remedy = "leave examples.buffer out, so that the file is read as a whole"
    for row in rows:
        if row.graded:
            raise DataError(
                f"{row.place}: one document of its query's list, whose others may be anywhere in "
                f"the file; write whole lists (query, pos, neg), or {remedy}"
            )
        if row.query.text is None or any(one.document.text is None for one in row.documents):
            raise DataError(
                f"{row.place}: an id without its text, and streamed rows bring theirs; write the "
                f"texts into the file, or {remedy}"
            )
        if row.negative_queries and limit != 0:
            raise DataError(
                f"{row.place}: has negative_queries, which are compared with all queries of the "
                f"file; set negative_queries: 0, or {remedy}"
            )
        if same_text_key(row.query.text) not in tested:
            yield row._replace(negative_queries=())
