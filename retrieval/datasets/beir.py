"""Reads folders in BEIR layout: ``corpus.jsonl``, ``queries.jsonl``, ``qrels/<split>.tsv``.

Fields may have their other usual names (``id``, ``docid``, ``contents``, ``body``, ``query``); the
first line of a file decides which.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.retrieval.datasets.source import Places, Qrels, find_split
from sluice.retrieval.datasets.topics import (
    QUERY_ID,
    QUERY_TEXT,
    Placed,
    placed_topics,
    read_topics,
)
from sluice.retrieval.documents.columns import MetadataReader
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import Entry, distinct, id_text
from sluice.retrieval.documents.json_files import field_of, read_objects
from sluice.retrieval.documents.readers.documents import Documents, contents_of
from sluice.retrieval.documents.readers.fields import ID, TEXT, TITLE, column_names
from sluice.retrieval.documents.readers.source import as_documents
from sluice.retrieval.runs.trec_files import read_qrels

CORPUS_FIELDS = "{'_id': ..., 'title': ..., 'text': ...}"
QUERY_FIELDS = "{'_id': ..., 'text': ...}"
QRELS = (".tsv", ".txt", ".qrels", ".trec")  # endings of files in qrels/


def read_documents(path: Path) -> Iterator[Document]:
    """Stream the documents of a file: JSON lines, or whatever ``as_documents`` reads.

    In JSON lines (``.jsonl``, ``.jsonl.gz``) a missing or null title is empty, and metadata are
    the values of ``metadata``. Those that no ``where`` could filter by (objects, lists of anything
    but texts) are left out, with one warning that counts them. Memory: eight bytes a document, for
    finding a second document of the same id, which is reported within some thousand lines.
    """
    if not is_json_lines(path):
        yield from as_documents(path)
        return
    metadata = MetadataReader()
    yield from distinct(lambda: _entries(path, CORPUS_FIELDS, _document, metadata))
    metadata.warn(path)


def read_queries(path: Path) -> Iterator[tuple[str, str]]:
    """Stream the (id, text) pairs of a file: JSON lines, or whatever ``read_topics`` reads."""
    return distinct(placed_queries(path))


def placed_queries(path: Path) -> Placed:
    """Return what streams the queries that ``read_queries`` reads, each after its place."""
    if not is_json_lines(path):
        return placed_topics(path)
    return partial(_entries, path, QUERY_FIELDS, _query)


def is_json_lines(path: Path) -> bool:
    """Return whether a file's name says that it holds JSON lines."""
    return path.name.removesuffix(".gz").endswith(".jsonl")


class _Names(NamedTuple):
    """What a file calls its fields."""

    id: str
    title: str
    text: str


def _names_in(value: Mapping[str, Any], texts: Sequence[str], expected: str) -> _Names:
    """Return the names of the fields in the first line; BEIR's unless it has others."""
    ids = ID if expected == CORPUS_FIELDS else QUERY_ID
    return _Names(
        *(
            next((name for name in names if name in value), names[0])
            for names in (ids, TITLE, texts)
        )
    )


def _entries(
    path: Path,
    expected: str,
    make: Callable[..., Entry],
    *arguments: Any,
) -> Iterator[tuple[str, Entry]]:
    place = ""
    names = None
    for number, value in read_objects(path, expected):
        if names is None:
            names = _names_in(value, TEXT if expected == CORPUS_FIELDS else QUERY_TEXT, expected)
        place = f"{path}:{number}"
        yield place, make(place, value, names, *arguments)
    if not place:
        raise DataError(f"{path}: empty; expected one JSON object a line: {expected}")


def _document(
    place: str, value: dict[str, Any], names: _Names, metadata: MetadataReader
) -> Document:
    title, own = value.get(names.title), value.get("metadata")
    if title is not None and not isinstance(title, str):
        raise DataError(
            f"{place}: {names.title!r} is {_shown(title)}, expected a string: {CORPUS_FIELDS}"
        )
    name, text = _query(place, value, names, CORPUS_FIELDS)
    if not own:  # BEIR's own files have {} or nothing
        return Document(name, title or "", text)
    if not isinstance(own, dict):
        raise DataError(
            f"{place}: 'metadata' is {_shown(own)}, expected an object of texts, numbers, "
            'booleans and lists of texts, as in {"lang": "en", "year": 2020}; or remove it'
        )
    return Document(name, title or "", text, metadata.kept(own))


def _query(
    place: str, value: dict[str, Any], names: _Names, expected: str = QUERY_FIELDS
) -> tuple[str, str]:
    name = id_text(f"{place}: {names.id!r}", field_of(place, value, names.id, expected))
    text = field_of(place, value, names.text, expected)
    if not isinstance(text, str):
        raise DataError(f"{place}: {names.text!r} is {_shown(text)}, expected a string: {expected}")
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
        """Return the names of the files in ``qrels/``, BEIR's or TREC's."""
        return sorted({file.stem for file in _qrels_files(self.path)})

    def places(self, split: str) -> Places:
        """Return the paths of the three files."""
        return Places(
            str(_file(self.path, "corpus")),
            str(_file(self.path, "queries")),
            str(self.qrels_file(split)),
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
        return read_qrels(self.qrels_file(split))

    def qrels_file(self, split: str) -> Path:
        """Return the path of the split's judgements, ``<split>.tsv`` where there are none."""
        files = [self.path / "qrels" / f"{split}{ending}" for ending in QRELS]
        return next((file for file in files if file.exists()), files[0])

    def _existing(self, part: str) -> Path:
        path = _file(self.path, part)
        if not path.exists():
            raise DataError(f"{self.path}: no {part}.jsonl or {part}.jsonl.gz in this dataset")
        return path


def is_beir_folder(path: Path) -> bool:
    """Return whether a folder has any of the three parts."""
    return path.is_dir() and (
        _file(path, "corpus").exists() or _file(path, "queries").exists() or any(_qrels_files(path))
    )


def _qrels_files(folder: Path) -> Iterator[Path]:
    return (file for file in (folder / "qrels").glob("*") if file.suffix in QRELS)


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


SPLIT = "test"  # of a single file of judgements
CORPUS_COLUMNS = ("id", "text", "title", "metadata")
QUERY_COLUMNS = ("query_id", "query")
COLUMNS = (*CORPUS_COLUMNS, *QUERY_COLUMNS)

Files = str | Path | Mapping[str, str | Path] | None


class LooseFiles:
    """The source of ``dataset: {corpus: ..., queries: ..., qrels: ..., columns: ...}``.

    ``corpus`` is whatever ``as_documents`` reads. ``queries`` (``read_topics``) and ``qrels``
    (``read_qrels``) are files, or mappings of splits to files; a single file of judgements is the
    split ``test``, a single file of queries that of every split. ``columns`` names columns: ``id``,
    ``text`` (or several), ``title`` and ``metadata`` of the corpus, ``query_id`` and ``query`` (or
    several) of the queries. ``allow`` are paths that links in the corpus may lead to. With
    ``code`` the corpus is a folder of program code.
    """

    def __init__(
        self,
        corpus: Any,
        queries: Files = None,
        qrels: Files = None,
        columns: Mapping[str, Any] | None = None,
        name: str | None = None,
        allow: Sequence[str] = (),
        code: bool = False,
    ) -> None:
        if not isinstance(code, bool):
            raise ConfigError(f"dataset.code: {code!r}; expected true or false")
        if columns is not None and not isinstance(columns, Mapping):
            raise ConfigError(f"dataset.columns: {columns!r}; expected keys and values")
        self._columns = dict(columns or {})
        for key in self._columns:
            if key not in COLUMNS:
                raise ConfigError(
                    f"dataset.columns.{key}: known are {', '.join(COLUMNS)}{suggest(key, COLUMNS)}"
                )
        self._query_columns = column_names("dataset.columns.query", self._columns.get("query"))
        if self._query_columns == ():
            raise ConfigError("dataset.columns.query: empty; name a column, or leave it out")
        if not isinstance(allow, Sequence) or isinstance(allow, str):
            raise ConfigError(f"dataset.allow: {allow!r}; expected a list of paths")
        self._corpus, self._allow, self._code = corpus, allow, code
        self._queries = _by_split("queries", queries)
        self._qrels = _by_split("qrels", qrels)
        if self._qrels and not self._queries:
            raise ConfigError("dataset.qrels: judgements need their queries; add queries: FILE")
        self.name = name or (
            _stem(corpus) if isinstance(corpus, str | Path) else self._documents.name
        )

    @property
    def described(self) -> str:
        """How the corpus is read, in one line, which reading does not log any more."""
        return self._documents.quiet().described

    @cached_property
    def _documents(self) -> Documents:
        asked = {key: self._columns[key] for key in CORPUS_COLUMNS if key in self._columns}
        return as_documents(self._corpus, **asked, allow=self._allow, code=self._code)

    def splits(self) -> list[str]:
        """Return the splits that have judgements."""
        return list(self._qrels)

    def places(self, split: str) -> Places:
        """Return the paths of the parts."""
        queries = self._file(self._queries, split)
        return Places(
            str(self._corpus) if isinstance(self._corpus, str | Path) else self.name,
            str(queries or "dataset.queries"),
            str(self._qrels.get(split) or "dataset: {queries: FILE, qrels: FILE}"),
        )

    def documents(self) -> Iterator[Document]:
        """Stream the corpus."""
        return iter(self._documents)

    def document_count(self) -> int | None:
        """Return the corpus size where the source knows it."""
        return self._documents.size

    def queries(self, split: str) -> Iterable[tuple[str, str]]:
        """Stream the split's queries."""
        file = self._file(self._queries, split)
        if file is None:
            raise DataError(f"dataset {self.name}: no queries; add queries: FILE")
        name, columns = self._columns.get("query_id"), self._query_columns
        if is_json_lines(file) and name is None and columns is None:
            return read_queries(file)
        return read_topics(file, id=name, text=columns)

    def qrels(self, split: str) -> Qrels:
        """Read the split's judgements."""
        return read_qrels(self._qrels[split])

    def contents(self, splits: Iterable[str]) -> str:
        """Return a hash of the contents: the corpus, and queries and judgements of the splits."""
        found = [find_split(split, self.splits()) for split in splits]
        files = [
            file
            for split in found
            if split is not None
            for file in (self._file(self._queries, split), self._qrels[split])
            if file is not None
        ]
        rest = [contents_of(file.parent, [file]) for file in files]
        return fingerprint_of(self._documents.fingerprint, rest)

    @staticmethod
    def _file(files: Mapping[str, Path], split: str) -> Path | None:
        """Return a split's file; a single file without a split is that of all."""
        return files.get(split) or files.get("")


def _by_split(key: str, files: Files) -> dict[str, Path]:
    """Return the files by split; they exist."""
    if files is None:
        return {}
    single = SPLIT if key == "qrels" else ""
    named = files if isinstance(files, Mapping) else {single: files}
    if not all(isinstance(file, str | Path) and str(file) for file in named.values()):
        raise ConfigError(f"dataset.{key}: {files!r}; expected a file, or split: file for several")
    paths = {str(split): expanded(file) for split, file in named.items()}
    for path in paths.values():
        if not path.is_file():
            near = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
            raise DataError(
                f"dataset.{key}: no file {str(path)!r}, seen from {Path.cwd()}"
                f"{suggest(path.name, near)}"
            )
    return paths


def _stem(corpus: str | Path) -> str:
    text = str(corpus)
    return text if text.startswith("hf:") else Path(text).resolve().name.split(".")[0] or text
