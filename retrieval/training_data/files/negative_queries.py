"""Queries that a row's positives do not answer: read, kept apart from right ones, and drawn."""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.input.bounded import same_text_key
from sluice.retrieval.training_data.files.columns import NEGATIVE_QUERIES
from sluice.retrieval.training_data.files.rows import (
    Labelled,
    Named,
    Row,
    field_of,
    id_of,
    text_of,
    texts_of,
)

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset

log = logging.getLogger("sluice")

DESCRIPTIONS: Final = "descriptions"  # the format of files of descriptions that fit, or do not
GOOD: Final = ("good", "descriptions")
BAD: Final = ("bad", "misfits")
DESCRIBED: Final = ("sentence", "text", "document", "passage")
DOCUMENT_ID: Final = ("_id", "doc_id", "document_id", "docid", "id")


def with_negative_queries(row: Row, value: Mapping[str, Any]) -> Row:
    """Return a row with the ``negative_queries`` of its record, one text or a list."""
    own = value.get(NEGATIVE_QUERIES)
    if own is None or own in ("", []):
        return row
    return row._replace(negative_queries=tuple(texts_of(row.place, own, NEGATIVE_QUERIES)))


def described(place: str, value: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row for each description of ``{sentence, good: [...], bad: [...]}`` that is good."""
    text = text_of(place, field_of(place, value, DESCRIBED, "sentence"), "the sentence")
    good = texts_of(place, field_of(place, value, GOOD, "good descriptions"), "good")
    own = field_of(place, value, BAD, "bad descriptions", needed=False)
    bad = () if own is None else tuple(texts_of(place, own, "bad"))
    if not good:
        raise DataError(f"{place}: no good description; add one, or remove the row")
    name = field_of(place, value, DOCUMENT_ID, "id", needed=False)
    document = Named(None if name is None else id_of(place, name, "the id"), text)
    for description in good:
        yield Row(place, Named(None, description), (Labelled(document, 1.0),), negative_queries=bad)


def is_described(keys: Collection[str]) -> bool:
    """Return whether a record with these fields has descriptions."""
    return bool({*keys} & {*GOOD}) and bool({*keys} & {*BAD}) and bool({*keys} & {*DESCRIBED})


def without_right_ones(
    rows: Sequence[Row], dataset: Dataset, tested: Collection[str], limit: int | None, where: str
) -> list[Row]:
    """Return the rows without negative queries that one of their positives does answer.

    Those are queries of the rows or of the dataset's split. Those ``tested``, by the keys of their
    texts, are left out too; both are counted in a warning. With a ``limit`` of 0 rows have none.
    ``ConfigError`` for a limit where no row has any.
    """
    if not any(row.negative_queries for row in rows):
        if limit is not None:
            raise ConfigError(
                f"{NEGATIVE_QUERIES}: {limit} does nothing: no row of {where} has any; leave it out"
            )
        return list(rows)
    if limit == 0:
        return [row._replace(negative_queries=()) for row in rows]
    right = _right(rows, dataset)
    kept, answered, held_out = [], 0, 0
    for row in rows:
        own = {same_text_key(row.query.text or "")}
        for one in row.documents:
            if one.label > 0:
                own |= right[one.document.key] | right[same_text_key(one.document.text or "")]
        distinct = {same_text_key(text): text for text in reversed(row.negative_queries)}
        held_out += sum(key in tested for key in distinct)
        answered += sum(key in own for key in distinct if key not in tested)
        names = [text for key, text in distinct.items() if key not in own and key not in tested]
        kept.append(row._replace(negative_queries=tuple(reversed(names))))
    for count, why in ((answered, "a positive answers"), (held_out, "are dev or test queries")):
        if count:
            log.warning("%s: left out %s negative_queries that %s", where, f"{count:,}", why)
    return kept


def _right(rows: Sequence[Row], dataset: Dataset) -> dict[str, set[str]]:
    """Return by the key of a document's id, and of its text, its queries' texts' keys."""
    right: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        for one in row.documents:
            if one.label > 0:
                key = same_text_key(row.query.text or "")
                right[one.document.key].add(key)
                right[same_text_key(one.document.text or "")].add(key)
    for query, grades in dataset.qrels.items() if dataset.split is not None else ():
        for document, grade in grades.items():
            if grade > 0 and query in dataset.queries:
                right[document].add(same_text_key(dataset.queries[query]))
    return right


def drawn(row: Row, limit: int | None, key: str) -> tuple[str, ...]:
    """Return a row's negative queries, at most ``limit`` of them, drawn by ``key``."""
    own = row.negative_queries
    if limit is None or len(own) <= limit:
        return own
    places = sorted(random.Random(f"misfits:{key}").sample(range(len(own)), limit))
    return tuple(own[place] for place in places)
