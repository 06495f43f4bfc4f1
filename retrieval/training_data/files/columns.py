"""The raw rows of training files, and which columns hold what: as told, or guessed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.retrieval.documents.json_files import all_lines, read_lines, read_objects
from sluice.retrieval.documents.readers.fields import check_names
from sluice.retrieval.documents.readers.tables import csv_rows, parquet_rows

QUERY: Final = ("query", "anchor", "question", "query_text", "sentence1")
GRADE: Final = ("grade", "label", "score", "relevance", "similarity")
# Names by what a column holds, the likelier first; compared in lower case, with _ for - and spaces.
KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "query": (
        *QUERY, "q", "queries", "questions", "search_query", "search_term", "user_query", "input",
        "prompt", "source",
    ),
    "positive": (
        "positive", "positive_1", "pos", "answer", "answers", "document", "passage", "text", "doc",
        "response", "reply", "context", "content", "contents", "body", "output", "target",
        "sentence2", "p",
    ),
    "label": (*GRADE, "labels", "rating"),
}  # fmt: skip
WORDS: Final = {  # in longer names, such as "Customer question"
    "query": {"query", "question"}, "positive": {"answer", "positive", "reply", "response"},
}  # fmt: skip
NEGATIVE: Final = re.compile(r"(hard_)?neg(ative)?s?(_?\d+)?|n")
IDS: Final = (
    "_id",
    "docid",
    "doc_id",
    "document_id",
    "id",
    "index",
    "qid",
    "query_id",
    "uid",
    "url",
)
ROLES: Final = ("query", "positive", "negative", "label")
NEGATIVE_QUERIES: Final = "negative_queries"  # queries that the positive does not answer
WORD: Final = re.compile(r"[^\W\d]\w*([ _-]\w+){0,2}")  # a column's name, not a text
REMEDY: Final = "columns: {query: NAME, positive: NAME}"
UNNAMED: Final = {"0", "1"}  # the fields of a file of pairs without a header


class Columns(NamedTuple):
    """The names of a file's columns by what they hold; there may be none of the last two."""

    query: str
    positive: str
    negatives: tuple[str, ...] = ()
    label: str | None = None

    def __str__(self) -> str:
        named = [f"query {self.query!r}", f"positive {self.positive!r}"]
        named += [f"negative {name!r}" for name in self.negatives]
        return ", ".join(named if self.label is None else [*named, f"label {self.label!r}"])

    def row(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record under the names that the format ``columns`` has."""
        row = {"query": value.get(self.query), "positive": value.get(self.positive)}
        for number, name in enumerate(self.negatives, 1):
            row[f"negative_{number}"] = value.get(name)
        if value.get(NEGATIVE_QUERIES) is not None:
            row[NEGATIVE_QUERIES] = value[NEGATIVE_QUERIES]
        return row if self.label is None else {**row, "label": value.get(self.label)}

    def widened(self, names: Sequence[str]) -> Columns:
        """Return the columns with the negatives, and the label if there is none, of ``names``."""
        negatives = [name for name in names if _role(name) == "negative"]
        labels = [name for name in names if _role(name) == "label"]
        label = next(iter(labels), None) if self.label is None else self.label
        return self._replace(negatives=(*self.negatives, *negatives), label=label)


def check_columns(columns: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` unless ``columns`` names columns by what they hold."""
    for role, names in columns.items():
        if role not in ROLES:
            raise ConfigError(
                f"columns.{role}: columns takes {', '.join(ROLES)}{suggest(str(role), ROLES)}"
            )
        several = isinstance(names, list) and role == "negative" and names
        if not all(isinstance(name, str) and name for name in (names if several else [names])):
            more = ", or a list of them" if role == "negative" else ""
            raise ConfigError(f"columns.{role}: {names!r}; expected the name of a column{more}")


def names_in(columns: Mapping[str, Any] | None) -> list[str]:
    """Return all the names that ``columns`` gives."""
    return [name for names in (columns or {}).values() for name in _listed(names)]


def is_header(fields: Sequence[str], mapped: Collection[str], *, needed: bool) -> bool:
    """Return whether the first line of a file names its columns.

    ``mapped`` are names that it then has; without any the known names decide, and where a header is
    ``needed``, as in csv, whether the fields look like names.
    """
    names = [field.strip() for field in fields]
    if mapped:
        return any(name in names for name in mapped)
    roles = {role for role in map(_role, names) if role}
    if len(roles) > 1 or (_role(names[0]) == "query" and len(names[0]) > 1):
        return True
    return needed and all(WORD.fullmatch(name) and len(name) <= 40 for name in names)


def columns_of(
    place: str, value: Mapping[str, Any], columns: Mapping[str, Any] | None = None
) -> Columns | None:
    """Return what the columns of a file hold, from a record's fields; None if that is not clear.

    ``columns`` says it for some. Of two columns of texts, one known by its name makes the other the
    rest of the pair; two unknown ones are query and positive in that order. ``DataError`` if a
    column named in ``columns`` does not exist, or the other half of the pair stays open.
    """
    for role, names in (columns or {}).items():
        for name in _listed(names):
            if name not in value:
                listed = ", ".join(map(repr, list(value)[:8]))
                raise DataError(
                    f"{place}: no column {name!r}, which columns.{role} names; the columns are "
                    f"{listed}{suggest(name, value)}"
                )
    free = [name for name in value if name not in names_in(columns)]
    chosen: dict[str, str | None] = {}
    for role, known in KNOWN.items():
        own = (columns or {}).get(role)
        ranked = [name for each in known for name in free if _plain(name) == each]
        ranked += [n for n in free if WORDS.get(role, set()) & {*_plain(n).split("_")} - {"id"}]
        chosen[role] = own if own is not None else next(iter(ranked), None)
    negatives = _listed((columns or {}).get("negative"))
    negatives = negatives or [name for name in free if NEGATIVE.fullmatch(_plain(name))]
    used = {*chosen.values(), *negatives}
    others = {*IDS, NEGATIVE_QUERIES}
    rest = [n for n in value if n not in used and _plain(n) not in others and _is_text(value[n])]
    if len(rest) == 2 and not used - {None} and _pair(value):
        chosen["query"], chosen["positive"] = rest
    for role in ("query", "positive"):
        if chosen[role] is None and len(rest) == 1:
            chosen[role] = rest.pop()
    query, positive = chosen["query"], chosen["positive"]
    if query is None or positive is None:
        if not columns:
            return None
        open_role = "query" if query is None else "positive"
        raise DataError(
            f"{place}: which column holds the {open_role}? The columns are "
            f"{', '.join(map(repr, list(value)[:8]))}; say it: {REMEDY}"
        )
    return Columns(query, positive, tuple(negatives), chosen["label"])


def renamed(
    records: Iterator[tuple[str, dict[str, Any]]],
    columns: Columns,
    known: Collection[str],
    roles: Collection[str] = (),
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the records under the names of the format ``columns``.

    ``columns`` was chosen from the columns ``known``; of others, which only later rows have, those
    called like a negative or a label count too, unless their role is one of ``roles``, told ones.
    """
    for place, value in records:
        late = [name for name in value if name not in known and _role(name) not in roles]
        yield place, (columns.widened(late) if late else columns).row(value)


def _pair(value: Mapping[str, Any]) -> bool:
    """Return whether two columns of any name are a query and its positive: texts, not ids."""
    return set(value) != UNNAMED or any(" " in str(field).strip() for field in value.values())


def _is_text(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, str) and any(map(str.isalpha, first))


def _role(name: str) -> str | None:
    if NEGATIVE.fullmatch(_plain(name)):
        return "negative"
    return next((role for role, known in KNOWN.items() if _plain(name) in known), None)


def _plain(name: str) -> str:
    return re.sub(r"[\s-]+", "_", str(name).strip().lower())


def _listed(names: Any) -> list[str]:
    return [] if names is None else list(names) if isinstance(names, list) else [names]


Record = tuple[str, dict[str, Any]]  # file:line, and the fields by name

DELIMITERS = ";\t|"  # of csv files whose first line has no comma
FIRST_NAMES = {"query_id", "query-id", "qid"}  # of a header, beside the names of queries


def form_of(path: Path) -> str:
    """Return ``jsonl``, ``csv``, ``tsv`` or ``parquet`` by the file's name, ``.gz`` or not."""
    names = {".jsonl": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv", ".txt": "tsv"}
    names[".parquet"] = "parquet"
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix not in names:
        raise DataError(
            f"{path}: a file of examples is .jsonl, .csv, .tsv or .parquet (the first three also "
            f"with .gz), not {suffix or 'without an ending'}; rename it"
        )
    return names[suffix]


def read_records(path: Path, mapped: Collection[str] = ()) -> Iterator[Record]:
    """Stream the rows of a file as fields by name.

    ``mapped`` are names of columns that it has. A tsv file without a header, as MS MARCO's, has
    fields named ``"0"``, ``"1"``, ... Only csv has quoting. Raises ``DataError`` with file and line
    for text that is not UTF-8, broken JSON, and a row with too many or too few fields.
    """
    form = form_of(path)
    if form == "jsonl":
        for number, value in read_objects(path, '{"query": ..., "pos": [...], "neg": [...]}'):
            yield f"{path}:{number}", value
    elif form == "parquet":
        yield from _parquet(path)
    elif form == "tsv":
        lines = ((n, line.split("\t")) for n, line in read_lines(path))
        yield from _named(path, lines, mapped)
    else:
        yield from _named(path, _csv(path), mapped)


def _named(
    path: Path, rows: Iterator[tuple[int, list[str]]], roles: Collection[str]
) -> Iterator[Record]:
    names: list[str] | None = None
    csv_file = form_of(path) == "csv"
    for number, fields in rows:
        if names is None:
            first = fields[0].strip().lower()
            if first in FIRST_NAMES or is_header(fields, roles, needed=csv_file):
                names = [field.strip() for field in fields]
                check_names(f"{path}:{number}", [name for name in names if name])
                continue
            if roles:
                columns = ", ".join(repr(field[:40]) for field in fields[:8])
                raise DataError(
                    f"{path}:{number}: none of {', '.join(map(repr, roles))} is in the first line, "
                    f"which has {columns}; the first line has to name the columns"
                )
            if csv_file:
                raise DataError(
                    f"{path}:{number}: begins with {fields[0]!r:.60}; expected a header with the "
                    "columns' names, as in query,positive,negative_1"
                )
            names = [str(place) for place in range(len(fields))]
        if len(fields) != len(names):
            raise DataError(
                f"{path}:{number}: {len(fields)} fields, but {len(names)} in the first line; every "
                "row needs as many (remove tabs and line breaks inside texts)"
            )
        yield f"{path}:{number}", dict(zip(names, fields, strict=True))


def _csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    stream = (line for _, line in all_lines(path))
    first = next(stream, "")
    others = [mark for mark in DELIMITERS if mark in first and "," not in first]
    for number, fields in csv_rows(path, chain([first], stream), (others or [","])[0]):
        if fields:
            yield number, fields


def _parquet(path: Path) -> Iterator[Record]:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    for place, fields in parquet_rows(path):
        yield place, dict(fields)
