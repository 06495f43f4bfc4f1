"""Reads lists and other iterables: texts, mappings, (id, text) pairs, documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import id_text
from sluice.retrieval.documents.readers.documents import Documents, Placed, size_of
from sluice.retrieval.documents.readers.fields import SAMPLE, Asked, Fields, choose

EXPECTED = (
    "expected documents, texts, (id, text) pairs, or mappings such as "
    "{'id': ..., 'title': ..., 'text': ...}"
)


def documents_by_id(source: Mapping[Any, Any], asked: Asked) -> Documents:
    """Return the documents of a mapping: id to text, or id to the other fields."""
    if all(isinstance(value, Mapping) for value in source.values()):
        if asked.id is not None:
            raise ConfigError(
                f"id: {asked.id!r}; the keys of the mapping are the ids: leave it out"
            )
        rows = [{"id": key} | {**value, "id": key} for key, value in source.items()]
        return documents_in(rows, asked._replace(id="id" if rows else None))
    return documents_in(list(source.items()), asked)


def documents_in(source: Iterable[Any], asked: Asked, *, name: str = "memory") -> Documents:
    """Return the documents of a list, or of another iterable whose items are of one kind.

    An iterator is read once, as its documents are needed. A text has its place, from 0, as its id.
    """
    once = iter(source) is source
    stream = iter(source)
    first = list(islice(stream, SAMPLE))
    size = size_of(source)
    fields = _fields(first, asked)

    def read() -> Placed:
        items = chain(first, stream) if once else source
        return _entries(items, fields)

    kind = _kind(first[0]) if first else "documents"
    described = f"{kind} in {name}" if size is None else plural(size, kind.removesuffix("s"))
    if size is not None and name != "memory":
        described = f"{name}: {described}"
    if fields is not None:
        described += f": {fields.describe()}"
    guessed = fields is not None and bool(first)
    texts = any(isinstance(item, str) for item in first)
    numbered = texts if fields is None else fields.id is None
    return Documents(
        name, read, described=described, size=size, once=once, guessed=guessed, numbered=numbered
    )


def _fields(sample: list[Any], asked: Asked) -> Fields | None:
    """Return the fields of mappings, None for items of another kind."""
    if sample and isinstance(sample[0], Mapping):
        rows = [row for row in sample if isinstance(row, Mapping)]
        names = list(dict.fromkeys(str(name) for row in rows for name in row))
        return choose("documents", names, rows, asked)
    if asked.anything and sample:
        raise ConfigError(
            f"id, text, title, metadata: name columns, and {_kind(sample[0])} have none; leave "
            "them out"
        )
    return None


def _kind(item: Any) -> str:
    if isinstance(item, Document):
        return "documents"
    if isinstance(item, Mapping):
        return "mappings"
    return "texts" if isinstance(item, str) else "pairs"


def _entries(items: Iterable[Any], fields: Fields | None) -> Placed:
    if fields is None:
        for number, item in enumerate(items):
            yield f"document {number}", _document(number, item)
        return
    yield from fields.documents("documents", _rows(items))


def _rows(items: Iterable[Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise DataError(f"document {number}: {item!r:.80}; the ones before are mappings")
        yield f"document {number}", item


def _document(number: int, item: Any) -> Document:
    if isinstance(item, Document):
        return item
    if isinstance(item, str):
        return Document(str(number), "", item)
    if isinstance(item, tuple | list) and len(item) in (2, 3):
        name = id_text(f"document {number}: the id", item[0])
        if all(isinstance(part, str) for part in item[1:]):
            return Document(name, "" if len(item) == 2 else item[1], item[-1])
    named = ("page_content", "content", "text")  # of LangChain, Haystack and LlamaIndex
    text = next((value for name in named if isinstance(value := getattr(item, name, 0), str)), None)
    if text is not None:
        name = getattr(item, "id_", None) or getattr(item, "id", None) or str(number)
        facts = getattr(item, "metadata", None) or getattr(item, "meta", None) or {}
        return Document(id_text(f"document {number}: the id", name), "", text, facts)
    raise DataError(f"document {number}: {item!r:.80}; {EXPECTED}")
