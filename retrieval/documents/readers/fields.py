"""Chooses which columns of a table are the id, the title and the text, and reads rows by them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from typing import Any, NamedTuple

from sluice.encoders.foundation.errors import ConfigError, DataError, listed, suggest
from sluice.retrieval.documents.columns import (
    COMMA_TOLD,
    DECIMAL_COMMA,
    MetadataReader,
    plain,
)
from sluice.retrieval.documents.document import NOTHING, Document, Metadata
from sluice.retrieval.documents.ids import id_text
from sluice.retrieval.documents.readers.documents import Placed

ROW = "row"  # as id: the row's number, from 0
MOST_COLUMNS = 10_000  # of a table
SAMPLE = 100  # rows looked at before columns are chosen

# Names of columns, best first; compared without regard to case.
ID = ("_id", "id", "docid", "doc_id", "doc-id", "docno", "document_id", "corpus-id", "corpus_id",
      "pid", "passage_id", "identifier", "uid", "uuid", "guid")  # fmt: skip
# Taken as ids only where no value occurs twice among the first rows.
LIKELY_ID = ("url", "uri", "link", "path", "file", "filename", "file_name", "slug", "key", "doi",
             "isbn", "name")  # fmt: skip
TEXT = ("text", "contents", "content", "body", "passage", "page_content", "full_text", "fulltext")
LIKELY_TEXT = ("document", "doc", "paragraph", "chunk", "article", "abstract", "description",
               "summary", "answer", "message", "review", "comment", "value")  # fmt: skip
TITLE = ("title", "headline", "heading", "subject", "name", "headings")
METADATA = "metadata"  # an object of this name is metadata itself

REMEDY = "name it with --text COLUMN (in Python text='COLUMN', in YAML columns: {text: COLUMN})"
INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")

Row = Mapping[str, Any]
Rows = Iterator[tuple[str, Row]]  # (place, fields by name)


class Asked(NamedTuple):
    """The columns that the caller named; None is to be guessed, empty metadata is none."""

    id: str | None = None
    text: tuple[str, ...] | None = None
    title: str | None = None
    metadata: tuple[str, ...] | None = None

    @classmethod
    def of(cls, id: Any, text: Any, title: Any, metadata: Any) -> Asked:
        """Check what the caller named: a column, or for text and metadata several."""
        for name, value in (("id", id), ("title", title)):
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigError(f"{name}: {value!r}; expected the name of a column")
        return cls(
            id, column_names("text", text) or None, title, column_names("metadata", metadata)
        )

    @property
    def anything(self) -> bool:
        """Whether any column is named."""
        return any(value is not None for value in self)


def column_names(name: str, value: Any) -> tuple[str, ...] | None:
    """Return the columns that ``value``, a name or several, stands for; None for None."""
    if value is None:
        return None
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) and n for n in names):
        raise ConfigError(f"{name}: {value!r}; expected the name of a column, or a list of names")
    return tuple(names)


@dataclass
class Fields:
    """The columns of a table that make a document.

    ``id`` None numbers the rows. Texts of several columns are put together, a blank line between
    them. ``metadata`` None is every other column. ``parsers`` make values of texts, by column.
    """

    id: str | None
    title: str | None
    text: tuple[str, ...]
    metadata: tuple[str, ...] | None
    listed: tuple[str, ...] = ()  # the metadata columns that the sample has
    parsers: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    with_comma: tuple[str, ...] = ()  # of these, those of numbers such as 12,50

    def describe(self) -> str:
        """Return the choice in words: ``id from 'path', title from 'headline', ...``."""
        parts = ["id: the row's number" if self.id is None else f"id from {self.id!r}"]
        if self.title is not None:
            parts.append(f"title from {self.title!r}")
        parts.append(f"text from {' and '.join(map(repr, self.text))}")
        if self.listed:
            more = len(self.listed) - 8
            names = ", ".join(self.listed[:8]) + (f" and {more} more" if more > 0 else "")
            parts.append(f"metadata: {names}")
        told = f"; {', '.join(self.with_comma)}: {COMMA_TOLD}" if self.with_comma else ""
        return ", ".join(parts) + told

    def documents(self, where: str, rows: Rows, *, prefix: str = "") -> Placed:
        """Yield (place, document) of rows; one warning counts metadata that cannot be stored.

        A row's number, where it is the id, follows ``prefix``.
        """
        reader = MetadataReader()
        for number, (place, row) in enumerate(rows):
            name = f"{prefix}{number}" if self.id is None else _id(place, self.id, row)
            title = "" if self.title is None else _text(place, self.title, row.get(self.title))
            text = self._joined(place, row)
            yield place, Document(name, title, text, self._metadata(row, reader))
        reader.warn(where)

    def _joined(self, place: str, row: Row) -> str:
        if not any(name in row for name in self.text):
            raise DataError(
                f"{place}: no field {self.text[0]!r}; its fields are "
                f"{', '.join(map(repr, list(row)[:8])) or 'none'}; every row needs its text"
            )
        texts = [_text(place, name, row.get(name)) for name in self.text]
        return texts[0] if len(texts) == 1 else "\n\n".join(filter(None, texts))

    def _metadata(self, row: Row, reader: MetadataReader) -> Metadata:
        used = {self.id, self.title, *self.text}
        names = [key for key in row if key not in used] if self.metadata is None else self.metadata
        values: dict[str, Any] = {}
        for name in names:
            value = row.get(name)
            if name == METADATA and isinstance(value, Mapping):
                values.update({str(key): stored(inner) for key, inner in value.items()})
            elif isinstance(value, str) and name in self.parsers:
                values[name] = self.parsers[name](value)
            else:
                values[name] = stored(value)
        values = {key: value for key, value in values.items() if value is not None}
        return reader.kept(values) if values else NOTHING


def _id(place: str, name: str, row: Row) -> str:
    if name not in row:
        raise DataError(f"{place}: no field {name!r}, which holds the ids of other rows; add it")
    return id_text(f"{place}: {name!r}", row[name])


def _text(place: str, name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if is_missing(value):
        return ""
    raise DataError(f"{place}: {name!r} is {value!r:.60}, expected a text")


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or the missing value of pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and math.isnan(value)


def stored(value: Any) -> Any:
    """Return a value as metadata can hold it: dates as ISO text, arrays as lists, NaN as None."""
    value = plain(value)
    if is_missing(value):
        return None
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if hasattr(value, "tolist") and not isinstance(value, str | bytes):
        return value.tolist()
    return value


def check_names(where: object, names: Sequence[str]) -> None:
    """Raise ``DataError`` for too many columns, and for two of one name.

    Of these a row would hold the last only.
    """
    if len(names) > MOST_COLUMNS:
        raise DataError(
            f"{where}: {len(names):,} columns; at most {MOST_COLUMNS:,} are read, so check the "
            "separator"
        )
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{where}: two columns are called {twice!r:.200}; rename one of them")


def choose(
    where: str,
    names: Sequence[str],
    sample: Sequence[Row],
    asked: Asked,
    *,
    parsed: bool = False,
    index: str | None = None,
) -> Fields:
    """Return the columns of a table: those asked for, and by name and sample the others.

    ``parsed``: all values are texts (csv), so columns of numbers and booleans are read as such.
    ``index`` names the column that a frame's index is, the id where no other is. ``DataError``
    where no column, or more than one, could be the text, and for a column that does not exist.
    """
    for column in _asked_columns(asked):
        if column not in names:
            raise DataError(
                f"{where}: no column {column!r}; its columns are {listed(map(repr, names))}"
                f"{suggest(column, names)}"
            )
    text = asked.text or (_text_column(where, names, sample, asked),)
    chosen = asked.id or _id_column(names, sample, {*text, asked.title, *(asked.metadata or ())})
    if asked.id == ROW and ROW not in names:
        chosen = None
    elif chosen is None:
        chosen = index
    used = {chosen, *text}
    title = asked.title or _first(TITLE, [name for name in names if name not in used])
    if title in (asked.metadata or ()) and asked.title is None:
        title = None
    others = [name for name in names if name not in {chosen, title, *text}]
    shown_names = tuple(others) if asked.metadata is None else asked.metadata
    if METADATA in shown_names:
        objects = [row[METADATA] for row in sample if isinstance(row.get(METADATA), Mapping)]
        within = dict.fromkeys(str(key) for each in objects for key in each)
        shown_names = (*(name for name in shown_names if name != METADATA or not objects), *within)
    parsers = {name: _parser(name, sample) for name in shown_names} if parsed else {}
    commas = tuple(name for name in parsers if _has_commas(name, sample))
    return Fields(chosen, title, tuple(text), asked.metadata, shown_names, parsers, commas)


def _asked_columns(asked: Asked) -> Iterator[str]:
    if asked.id is not None and asked.id != ROW:
        yield asked.id
    yield from asked.text or ()
    if asked.title is not None:
        yield asked.title
    yield from asked.metadata or ()


def _first(known: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the column whose name comes first among ``known``."""
    by_name = {name.strip().lower(): name for name in reversed(names)}
    return next((by_name[name] for name in known if name in by_name), None)


def _id_column(names: Sequence[str], sample: Sequence[Row], used: set[str | None]) -> str | None:
    free = [name for name in names if name not in used]
    certain = _first(ID, free)
    if certain is not None:
        return certain
    for likely in LIKELY_ID:
        column = _first((likely,), free)
        if column is not None and likely != "name":
            values = [row.get(column) for row in sample]
            if all(isinstance(v, str) and v for v in values) and len(set(values)) == len(values):
                return column
    return None


def _text_column(where: str, names: Sequence[str], sample: Sequence[Row], asked: Asked) -> str:
    """Return the one column that is the text; ``text`` itself wins over its synonyms."""
    used = {asked.id, asked.title, *(asked.metadata or ())}
    free = [name for name in names if name not in used]
    exact = _first(TEXT[:1], free)
    if exact is not None:
        return exact
    for known in (TEXT, LIKELY_TEXT):
        found = [name for name in free if name.strip().lower() in known]
        if len(found) == 1:
            return found[0]
        if found:
            raise DataError(
                f"{where}: several columns could be the text ({listed(map(repr, found))}); {REMEDY}"
            )
    ids = _id_column(free, sample, set())
    texts = [name for name in free if name != ids and _holds_texts(name, sample)]
    untitled = [name for name in texts if name.strip().lower() not in TITLE]
    if len(untitled or texts) == 1:
        return (untitled or texts)[0]
    raise DataError(
        f"{where}: cannot tell which column holds the text; its columns are "
        f"{listed(map(repr, names))}; {REMEDY}"
    )


def _holds_texts(name: str, sample: Sequence[Row]) -> bool:
    values = [row.get(name) for row in sample]
    texts = [value for value in values if isinstance(value, str) and value.strip()]
    return bool(texts) and not all(map(NUMBER.fullmatch, texts))


def _parser(name: str, sample: Sequence[Row]) -> Callable[[str], Any]:
    """Return how the texts of a column become values, as its first rows suggest."""
    texts = [str(row.get(name) or "").strip() for row in sample]
    texts = [text for text in texts if text]
    if texts and all(map(INTEGER.fullmatch, texts)):
        return _number
    if texts and all(map(NUMBER.fullmatch, texts)):
        return _number
    if texts and all(text.lower() in ("true", "false") for text in texts):
        return _boolean
    return _nothing_for_blank


def _has_commas(name: str, sample: Sequence[Row]) -> bool:
    """Return whether a column is of numbers, some with a comma, which may part thousands."""
    texts = [text for row in sample if (text := str(row.get(name) or "").strip())]
    commas = [text for text in texts if DECIMAL_COMMA.fullmatch(text)]
    return bool(commas) and all(NUMBER.fullmatch(text) or text in commas for text in texts)


def _number(text: str) -> Any:
    text = text.strip()
    if INTEGER.fullmatch(text):
        return int(text)
    return float(text) if NUMBER.fullmatch(text) else text or None


def _boolean(text: str) -> Any:
    return {"true": True, "false": False, "": None}.get(text.strip().lower(), text)


def _nothing_for_blank(text: str) -> str | None:
    return text or None
