"""The usual formats of training files: one function each from a record to a row; detection."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.training_data.files.columns import (
    GRADE,
    NEGATIVE,
    QUERY,
    REMEDY,
    Columns,
    Record,
    columns_of,
    names_in,
    read_records,
    renamed,
)
from sluice.retrieval.training_data.files.rows import (
    DESCRIPTIONS,
    NO_SCORE,
    Labelled,
    Named,
    Row,
    described,
    field_of,
    id_of,
    ids_of,
    is_described,
    joined,
    labelled_row,
    list_of,
    number_of,
    numbers_of,
    text_of,
    texts_of,
    with_negative_queries,
)

SAMPLE = 100  # rows looked at before columns are chosen
QUERY_ID = ("query_id", "query-id", "qid", "_query_id")
DOCUMENT = ("document", "passage", "text", "doc", "positive", "answer", "sentence2")
DOCUMENT_ID = ("doc_id", "document_id", "docid", "corpus-id", "corpus_id", "pid")
POSITIVE = ("positive", "positive_1", "pos")
TEACHER = ("scores", "labels", "label", "score", "margin")
LABEL = (*TEACHER, *GRADE, "rating")  # of a pair: beside negatives only a teacher's scores count


def rows_of(
    path: Path, form: str = "auto", columns: Mapping[str, Any] | None = None
) -> tuple[str, Iterator[Row]]:
    """Return a file's format, or what its columns hold, in words, and the stream of its rows.

    ``auto`` looks at the first rows; ``columns`` says what some of its columns hold. Raises
    ``DataError`` with file and line for an empty file, and for a row that is not of the format.
    """
    records = read_records(path, names_in(columns))
    sample = list(islice(records, SAMPLE))
    if not sample:
        raise DataError(f"{path}: empty; expected at least one row")
    records = chain(sample, records)
    name = form
    if form == "auto":
        name = "" if columns else _detected(*sample[0])
        if not name or (name == "graded" and not all(_has_grade(value) for _, value in sample)):
            named = _guessed(sample, columns)
            if named is not None:
                mapping, known = named
                renaming = partial(renamed, columns=mapping, known=known, roles=columns or ())
                return str(mapping), _pairs_too(renaming(records), renaming(iter(sample)))
            if not name:
                raise _unknown(*sample[0])
    if name == "columns":
        return name, _pairs_too(records, iter(sample))
    if name == DESCRIPTIONS:
        return name, chain.from_iterable(described(place, value) for place, value in records)
    make = FORMATS[name]
    return name, (with_negative_queries(make(place, value), value) for place, value in records)


def _guessed(
    sample: Sequence[Record], columns: Mapping[str, Any] | None
) -> tuple[Columns, Collection[str]] | None:
    """Return what the columns of a file hold, and the columns that were looked at.

    The first row decides which two are the pair, or where it leaves that open all rows of the
    sample; negatives and a label may be missing in the first row.
    """
    place, first = sample[0]
    union: dict[str, Any] = {}
    for _, value in sample:
        union.update((key, one) for key, one in value.items() if union.get(key) in (None, "", []))
    named = None if columns else columns_of(place, first)
    if named is not None:
        return named.widened([name for name in union if name not in first]), union
    named = columns_of(place, union, columns)
    return None if named is None else (named, union)


def _pairs_too(records: Iterator[Record], sample: Iterator[Record]) -> Iterator[Row]:
    """Yield rows of the format ``columns``; where others have labels, a pair without has label 1.

    Such a pair joins the list of its query, so that documents of label 0 are its negatives.
    """
    labelled = any(_is_labelled_pair(value) for _, value in sample)
    for place, value in records:
        row = with_negative_queries(_columns(place, value), value)
        alone = len(row.documents) == 1 and math.isnan(row.documents[0].score)
        yield row._replace(graded=True) if labelled and alone else row


def _is_labelled_pair(value: Mapping[str, Any]) -> bool:
    labelled = any(value.get(key) is not None for key in LABEL)
    return labelled and not any(NEGATIVE.fullmatch(key) and value[key] for key in value)


def _has_grade(value: Mapping[str, Any]) -> bool:
    return any(value.get(key) is not None for key in (*GRADE, "grades", "labels"))


def _bge(place: str, value: Mapping[str, Any]) -> Row:
    """``{query, pos: [...], neg: [...], pos_scores, neg_scores}``, with ids where mined here.

    ``neg_queries`` has for each negative a query that it answers, or an empty text.
    """
    query = text_of(place, field_of(place, value, QUERY, "query"), "query")
    name = field_of(place, value, QUERY_ID, "query id", needed=False)
    positives = texts_of(place, field_of(place, value, ("pos",), "positives"), "pos")
    negatives = texts_of(place, value.get("neg") or [], "neg")
    ids = {key: ids_of(place, value.get(f"{key}_ids") or [], f"{key}_ids") for key in _SIDES}
    scores = {key: numbers_of(place, value.get(f"{key}_scores"), f"{key}_scores") for key in _SIDES}
    for key, texts in (("pos", positives), ("neg", negatives)):
        if scores[key] and len(scores[key]) != len(texts):
            raise DataError(
                f"{place}: {len(scores[key])} {key}_scores for {len(texts)} {key}; one for each"
            )
    both: list[float] = []
    if scores["pos"] or scores["neg"]:
        both = [
            *(scores["pos"] or [NO_SCORE] * len(positives)),
            *(scores["neg"] or [NO_SCORE] * len(negatives)),
        ]
    return labelled_row(
        place,
        Named(None if name is None else id_of(place, name, "query id"), query),
        joined(ids["pos"], positives, place, "pos"),
        joined(ids["neg"], negatives, place, "neg"),
        both,
        [
            "" if not text else text_of(place, text, f"neg_queries[{number}]")
            for number, text in enumerate(list_of(place, value.get("neg_queries"), "neg_queries"))
        ],
    )


_SIDES = ("pos", "neg")


def _columns(place: str, value: Mapping[str, Any]) -> Row:
    """Sentence-transformers' columns: anchor, positive, negative_1..n, and a teacher's scores.

    An empty negative is none.

    Scores are one for each document, or margins of the positive over each negative: of those only
    differences are known, so the positive gets 0 and a negative minus its margin.
    """
    query = text_of(place, field_of(place, value, QUERY, "anchor"), "the anchor")
    positives = texts_of(place, field_of(place, value, POSITIVE, "positive"), "positive")
    negatives: list[str] = []
    for key in value:
        if NEGATIVE.fullmatch(key) and value[key] is not None and value[key] != "":
            negatives += texts_of(place, value[key], key)
    score = field_of(place, value, TEACHER if negatives else LABEL, "score", needed=False)
    if isinstance(score, str):
        score = _parsed(place, score)
    scores = numbers_of(place, score, "score")
    if scores and len(scores) == len(negatives) and len(positives) == 1:
        scores = [0.0, *(-margin for margin in scores)]
    named = [Named(None, text) for text in positives]
    others = [Named(None, text) for text in negatives]
    if len(scores) == 1 and not negatives and len(positives) == 1:
        return Row(place, Named(None, query), (Labelled(named[0], scores[0]),), graded=True)
    return labelled_row(place, Named(None, query), named, others, scores)


def _parsed(place: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise DataError(f"{place}: score is {text!r:.60}, expected a number or a list") from None


def _triples(place: str, value: Mapping[str, Any]) -> Row:
    """MS MARCO triples of texts: query, positive, negative."""
    query, positive, *negatives = _places(place, value, 3, "query, positive and negative")
    texts = [text_of(place, text, f"negative {n}") for n, text in enumerate(negatives, 1)]
    return labelled_row(
        place,
        Named(None, text_of(place, query, "the query")),
        [Named(None, text_of(place, positive, "the positive"))],
        [Named(None, text) for text in texts],
    )


def _id_triples(place: str, value: Mapping[str, Any]) -> Row:
    """MS MARCO qidpidtriples: ids of query, positive, negative; texts are the dataset's."""
    query, positive, *negatives = _places(place, value, 3, "ids of query, positive and negative")
    return labelled_row(
        place,
        Named(id_of(place, query, "the query's id"), None),
        [Named(id_of(place, positive, "the positive's id"), None)],
        [Named(id_of(place, name, "a negative's id"), None) for name in negatives],
    )


def _scored_triples(place: str, value: Mapping[str, Any]) -> Row:
    """Scored triples: scores of positive and negative, then ids of query, positive, negative."""
    expected = "two scores, then query, positive, negative"
    high, low, query, positive, negative = _places(place, value, 5, expected, exactly=True)
    scores = [number_of(place, high, "score 1"), number_of(place, low, "score 2")]
    ids = [id_of(place, name, "an id") for name in (query, positive, negative)]
    named = [Named(name, None) for name in ids]
    return labelled_row(place, named[0], named[1:2], named[2:], scores)


def _places(
    place: str, value: Mapping[str, Any], count: int, expected: str, *, exactly: bool = False
) -> list[Any]:
    fields = list(value.values())
    if len(fields) < count or (exactly and len(fields) != count):
        raise DataError(f"{place}: {len(fields)} fields, expected {count}: {expected}")
    return fields


def _tevatron(place: str, value: Mapping[str, Any]) -> Row:
    """``{query_id, query, positive_passages: [{docid, title, text}], negative_passages}``."""
    name = id_of(place, field_of(place, value, QUERY_ID, "query id"), "query id")
    text = field_of(place, value, QUERY, "query", needed=False)
    query = Named(name, None if text is None else text_of(place, text, "query"))
    positives, negatives = (_passages(place, value, side) for side in ("positive", "negative"))
    return labelled_row(place, query, positives, negatives)


def _passages(place: str, value: Mapping[str, Any], side: str) -> list[Named]:
    ids = value.get(f"{side}_document_ids")
    if ids is not None:
        return [Named(name, None) for name in ids_of(place, ids, f"{side}_document_ids")]
    passages = []
    listed = list_of(place, value.get(f"{side}_passages"), f"{side}_passages")
    for number, passage in enumerate(listed):
        here = f"{side}_passages[{number}]"
        if not isinstance(passage, Mapping):
            raise DataError(f"{place}: {here} is {passage!r:.60}, expected {{docid, title, text}}")
        name = id_of(place, field_of(f"{place}: {here}", passage, DOCUMENT_ID, "id"), here)
        title, text = passage.get("title") or "", passage.get("text") or ""
        if not isinstance(title, str) or not isinstance(text, str):
            raise DataError(
                f"{place}: {here} has {passage!r:.80}, expected texts as title and text"
            )
        passages.append(Named(name, text_of(place, f"{title} {text}".strip(), f"{here}.text")))
    return passages


def _msmarco(place: str, value: Mapping[str, Any]) -> Row:
    """``{qid, pos: [pid], neg: {system: [pid]}}`` of ids, each alone or with its score.

    A negative of several systems counts once, from the first of them.
    """
    name = id_of(place, field_of(place, value, QUERY_ID, "query id"), "query id")
    negatives = value.get("neg")
    by_system = negatives if isinstance(negatives, Mapping) else {"": negatives}
    lists = [list_of(place, each, "neg") for each in by_system.values()]
    scores: dict[str, float] = {}
    sides: list[list[Named]] = []
    positives = list_of(place, value.get("pos"), "pos")
    for items in (positives, [item for part in lists for item in part]):
        ids = [_identified(place, item, scores) for item in items]
        sides.append([Named(key, None) for key in dict.fromkeys(ids)])
    in_order = [scores[one.id or ""] for side in sides for one in side]
    return labelled_row(place, Named(name, None), sides[0], sides[1], in_order)


def _identified(place: str, item: Any, scores: dict[str, float]) -> str:
    score = NO_SCORE
    if isinstance(item, Mapping):
        value = field_of(place, item, ("ce-score", "ce_score", "score"), "score", needed=False)
        score = NO_SCORE if value is None else number_of(place, value, "score")
        item = field_of(place, item, DOCUMENT_ID, "document id")
    name = id_of(place, item, "a document's id")
    scores.setdefault(name, score)
    return name


def _graded(place: str, value: Mapping[str, Any]) -> Row:
    """A query, a document and its grade in each row, or lists of documents (doc_ids) and grades."""
    query = _named(place, value, QUERY_ID, QUERY, "query")
    lists = field_of(place, value, ("documents", "docs"), "documents", needed=False)
    if lists is not None:
        texts = texts_of(place, lists, "documents")
        grades = numbers_of(place, field_of(place, value, ("grades", "labels"), "grades"), "grades")
        if len(texts) != len(grades):
            raise DataError(f"{place}: {len(grades)} grades for {len(texts)} documents")
        ids = ids_of(place, value.get("doc_ids") or [], "doc_ids")
        named = joined(ids, texts, place, "documents")
        _check_one_grade(place, named, grades)
        pairs = list(zip(named, grades, strict=True))
    else:
        document = _named(place, value, DOCUMENT_ID, DOCUMENT, "document")
        pairs = [(document, number_of(place, field_of(place, value, GRADE, "grade"), "grade"))]
    return Row(place, query, tuple(Labelled(*pair) for pair in pairs), graded=True)


def _check_one_grade(place: str, documents: Sequence[Named], grades: Sequence[float]) -> None:
    """Raise ``DataError`` for a list that names a document twice, with two grades."""
    known: dict[str, float] = {}
    for number, (document, grade) in enumerate(zip(documents, grades, strict=True)):
        if known.setdefault(document.key, grade) != grade:
            raise DataError(
                f"{place}: documents[{number}] ({document.key!r:.60}) is in the list twice, with "
                f"the grades {known[document.key]:g} and {grade:g}; expected each once"
            )


def _named(
    place: str,
    value: Mapping[str, Any],
    ids: tuple[str, ...],
    texts: tuple[str, ...],
    what: str,
) -> Named:
    name = field_of(place, value, ids, f"{what} id", needed=False)
    text = field_of(place, value, texts, what, needed=name is None)
    return Named(
        None if name is None else id_of(place, name, f"{what} id"),
        None if text is None else text_of(place, text, f"the {what}"),
    )


FORMATS: dict[str, Callable[[str, Mapping[str, Any]], Row]] = {
    "bge": _bge,
    "columns": _columns,
    "graded": _graded,
    "id_triples": _id_triples,
    "msmarco": _msmarco,
    "scored_triples": _scored_triples,
    "tevatron": _tevatron,
    "triples": _triples,
}


def _detected(place: str, value: Mapping[str, Any]) -> str:
    """Return the format of a file by its first row; empty for columns of other names."""
    keys = {key for key in value if value[key] is not None}
    if keys & {"positive_passages", "positive_document_ids"}:
        return "tevatron"
    if "pos" in keys:
        return "bge" if keys & set(QUERY) else "msmarco"
    if is_described(keys):
        return DESCRIPTIONS
    if keys & {"documents", "docs"}:
        return "graded"
    if "0" in keys:
        fields = [str(field) for field in value.values()]
        if len(fields) == 5:
            return "scored_triples"
        if len(fields) >= 3:
            return "triples" if any(" " in field.strip() for field in fields) else "id_triples"
    elif keys & {"positive", "positive_1"} and keys & set(QUERY):
        return "columns"
    elif keys & {*QUERY, *QUERY_ID} and keys & {*DOCUMENT, *DOCUMENT_ID} and keys & set(GRADE):
        return "graded"
    return ""


def _unknown(place: str, value: Mapping[str, Any]) -> DataError:
    if any(name.isdigit() for name in value):
        return DataError(
            f"{place}: {len(value)} fields without a header; expected a first line with the "
            "columns' names, or query, positive and negatives in this order"
        )
    return DataError(
        f"{place}: unknown format (fields {', '.join(list(value)[:8])}); say which column is "
        f"which: {REMEDY}, or set format to one of {', '.join((*FORMATS, DESCRIPTIONS))}"
    )
