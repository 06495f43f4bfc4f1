"""Reads folders in BEIR layout: ``corpus.jsonl``, ``queries.jsonl``, ``qrels/<split>.tsv``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.datasets.source import Places, Qrels
from sluice.retrieval.documents.columns import MetadataReader
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import Entry, distinct, id_text
from sluice.retrieval.documents.jsonl import field_of, read_objects
from sluice.retrieval.runs.trec_files import read_qrels

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
    make = partial(_document, metadata=metadata)
    yield from distinct(lambda: _entries(path, CORPUS_FIELDS, make))
    metadata.warn(path)


def read_queries(path: Path) -> Iterator[tuple[str, str]]:
    """Stream the (id, text) pairs of a queries file (``.jsonl`` or ``.jsonl.gz``)."""
    return distinct(lambda: _entries(path, QUERY_FIELDS, _query))


def _entries(
    path: Path, expected: str, make: Callable[[str, dict[str, Any]], Entry]
) -> Iterator[tuple[str, Entry]]:
    place = ""
    for number, value in read_objects(path, expected):
        place = f"{path}:{number}"
        yield place, make(place, value)
    if not place:
        raise DataError(f"{path}: empty; expected one JSON object a line: {expected}")


def _document(place: str, value: dict[str, Any], *, metadata: MetadataReader) -> Document:
    title, own = value.get("title"), value.get("metadata")
    if title is not None and not isinstance(title, str):
        raise DataError(f"{place}: 'title' is {_shown(title)}, expected a string: {CORPUS_FIELDS}")
    name, text = _query(place, value, CORPUS_FIELDS)
    if not own:  # BEIR's own files have {} or nothing
        return Document(name, title or "", text)
    if not isinstance(own, dict):
        raise DataError(
            f"{place}: 'metadata' is {_shown(own)}, expected an object of texts, numbers, "
            'booleans and lists of texts, as in {"lang": "en", "year": 2020}; or remove it'
        )
    return Document(name, title or "", text, metadata.kept(own))


def _query(place: str, value: dict[str, Any], expected: str = QUERY_FIELDS) -> tuple[str, str]:
    name = id_text(f"{place}: '_id'", field_of(place, value, "_id", expected))
    text = field_of(place, value, "text", expected)
    if not isinstance(text, str):
        raise DataError(f"{place}: 'text' is {_shown(text)}, expected a string: {expected}")
    return name, text


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


class BeirFolder:
    """Reads the folder; corpus and queries may be compressed (``.jsonl.gz``)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.resolve().name
        self._count: int | None = None

    def splits(self) -> list[str]:
        """Return the names of the files in ``qrels/``."""
        return sorted(file.stem for file in (self.path / "qrels").glob("*.tsv"))

    def places(self, split: str) -> Places:
        """Return the paths of the three files."""
        return Places(
            str(_file(self.path, "corpus")),
            str(_file(self.path, "queries")),
            str(self.path / "qrels" / f"{split}.tsv"),
        )

    def documents(self) -> Iterator[Document]:
        """Stream the corpus file."""
        return read_documents(self._existing("corpus"))

    def document_count(self) -> int | None:
        """Count the lines of an uncompressed corpus file (a gigabyte takes about a second)."""
        path = _file(self.path, "corpus")
        if self._count is None and path.suffix == ".jsonl" and path.exists():
            self._count = _count_lines(path)
        return self._count

    def queries(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream the queries of all splits, which lie in one file."""
        return read_queries(self._existing("queries"))

    def qrels(self, split: str) -> Qrels:
        """Read the split's judgements."""
        return read_qrels(self.path / "qrels" / f"{split}.tsv")

    def _existing(self, part: str) -> Path:
        path = _file(self.path, part)
        if not path.exists():
            raise DataError(f"{self.path}: no {part}.jsonl or {part}.jsonl.gz in this dataset")
        return path


def is_beir_folder(path: Path) -> bool:
    """Return whether a folder has any of the three parts."""
    return path.is_dir() and (
        _file(path, "corpus").exists()
        or _file(path, "queries").exists()
        or any((path / "qrels").glob("*.tsv"))
    )


def beir_folders(parent: Path) -> list[str]:
    """Return the names of the datasets directly under a folder."""
    if not parent.is_dir():
        return []
    return sorted(path.name for path in parent.iterdir() if is_beir_folder(path))


def _file(folder: Path, part: str) -> Path:
    compressed = folder / f"{part}.jsonl.gz"
    plain = folder / f"{part}.jsonl"
    return compressed if compressed.exists() and not plain.exists() else plain


def _count_lines(path: Path) -> int:
    """Count the lines that hold more than white space, as reading would."""
    with path.open("rb") as stream:
        return sum(1 for line in stream if not line.isspace())
