"""Corpus and queries of a BEIR folder, read line by line; every bad line is one ``DataError``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sluice.encoders.foundation.errors import DataError, suggest
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.jsonl import read_objects
from sluice.retrieval.documents.metadata import MetadataReader
from sluice.retrieval.documents.repeated_ids import SeenIds

Entry = TypeVar("Entry", Document, tuple[str, str])

CORPUS_FIELDS = "{'_id': ..., 'title': ..., 'text': ...}"
QUERY_FIELDS = "{'_id': ..., 'text': ...}"


def read_documents(path: Path) -> Iterator[Document]:
    """Stream the documents of a corpus file (``.jsonl`` or ``.jsonl.gz``).

    A missing or null title is empty. Values of ``metadata`` that no ``where`` could filter by
    (objects, lists of anything but texts) are left out, with one warning that counts them. Memory:
    eight bytes a document, for finding a second document of the same id, which is reported within
    some thousand lines.
    """
    metadata = MetadataReader()
    yield from _distinct(path, CORPUS_FIELDS, partial(_document, metadata=metadata))
    metadata.say_dropped(path)


def read_queries(path: Path) -> Iterator[tuple[str, str]]:
    """Stream the (id, text) pairs of a queries file (``.jsonl`` or ``.jsonl.gz``)."""
    return _distinct(path, QUERY_FIELDS, _query)


def _distinct(
    path: Path, expected: str, make: Callable[[str, dict[str, Any], str], Entry]
) -> Iterator[Entry]:
    """Stream the entries of a file, none of whose ids may occur twice."""
    seen = SeenIds()
    number = 0
    for number, value in read_objects(path, expected):
        entry = make(f"{path}:{number}", value, expected)
        for suspect in seen.add(entry[0], number):
            _refuse_repetition(path, expected, *suspect)
        yield entry
    for suspect in seen.suspects():
        _refuse_repetition(path, expected, *suspect)
    if number == 0:
        raise DataError(f"{path}: empty; expected one JSON object a line: {expected}")


def _refuse_repetition(path: Path, expected: str, name: str, number: int) -> None:
    for earlier, value in read_objects(path, expected):
        if earlier >= number:
            return  # two ids that share a hash
        if str(value.get("_id")) == name:
            raise DataError(
                f"{path}:{number}: id {name!r} again, first in line {earlier}; "
                "ids are unique: remove or rename one"
            )


def _document(
    where: str, value: dict[str, Any], expected: str, *, metadata: MetadataReader
) -> Document:
    title = value.get("title")
    if title is not None and not isinstance(title, str):
        raise DataError(f"{where}: 'title' is {_shown(title)}, expected a string: {expected}")
    name, text = _id(where, value, expected), _text(where, value, expected)
    found = value.get("metadata")
    if not found:  # BEIR's own files have {} or nothing
        return Document(name, title or "", text)
    if not isinstance(found, dict):
        raise DataError(
            f"{where}: 'metadata' is {_shown(found)}, expected an object of texts, numbers, "
            'booleans and lists of texts, as in {"lang": "en", "year": 2020}; or remove it'
        )
    return Document(name, title or "", text, metadata.kept(found))


def _query(where: str, value: dict[str, Any], expected: str) -> tuple[str, str]:
    return _id(where, value, expected), _text(where, value, expected)


def _id(where: str, value: dict[str, Any], expected: str) -> str:
    name = _field(where, value, "_id", expected)
    if isinstance(name, int) and not isinstance(name, bool):
        return str(name)
    if not isinstance(name, str) or not name:
        raise DataError(
            f"{where}: '_id' is {_shown(name)}, expected a string that is not empty: {expected}"
        )
    return name


def _text(where: str, value: dict[str, Any], expected: str) -> str:
    text = _field(where, value, "text", expected)
    if not isinstance(text, str):
        raise DataError(f"{where}: 'text' is {_shown(text)}, expected a string: {expected}")
    return text


def _field(where: str, value: dict[str, Any], field: str, expected: str) -> Any:
    if field not in value:
        found = ", ".join(repr(key) for key in list(value)[:8]) or "none"
        raise DataError(
            f"{where}: no field {field!r} among {found}; expected {expected}{suggest(field, value)}"
        )
    return value[field]


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
