"""A dataset of one's own files: a corpus of any kind, and files of queries and judgements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.input.bounded import expanded
from sluice.retrieval.datasets.beir import is_json_lines, read_queries
from sluice.retrieval.datasets.source import Places, Qrels, find_split
from sluice.retrieval.datasets.topics import read_topics
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.readers.contents import contents_of
from sluice.retrieval.documents.readers.documents import Documents
from sluice.retrieval.documents.readers.fields import column_names
from sluice.retrieval.documents.readers.source import as_documents
from sluice.retrieval.runs.trec_files import read_qrels

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
    several) of the queries. ``allow`` are paths that links in the corpus may lead to.
    """

    def __init__(
        self,
        corpus: Any,
        queries: Files = None,
        qrels: Files = None,
        columns: Mapping[str, Any] | None = None,
        name: str | None = None,
        allow: Sequence[str] = (),
    ) -> None:
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
        self._corpus, self._allow = corpus, allow
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
        return as_documents(self._corpus, **asked, allow=self._allow)

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
