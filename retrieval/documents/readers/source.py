"""Turns what people have into documents: one function for every kind of source."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import plural
from sluice.encoders.foundation.trust import leads_out
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import id_text
from sluice.retrieval.documents.readers.code.folder import documents_of_code
from sluice.retrieval.documents.readers.documents import Documents, Placed, shown, size_of
from sluice.retrieval.documents.readers.fields import SAMPLE, Asked, Fields, choose
from sluice.retrieval.documents.readers.files.folder import (
    OUTPUTS,
    Notes,
    documents_of_files,
    listed_files,
    one_file,
)
from sluice.retrieval.documents.readers.files.kinds import KINDS, kind_of_file
from sluice.retrieval.documents.readers.frames import documents_in_frame
from sluice.retrieval.documents.readers.tables import FORMS, documents_in_tables, form_of_table

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


NAME = "standard input"


def documents_in_pipe(asked: Asked) -> Documents:
    """Return the documents of standard input, which is read to its end and kept in memory.

    Lines that begin with ``{`` are JSON objects, all or none; otherwise a line is a text.
    """
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{NAME}: not UTF-8 ({error.reason} at byte {error.start})") from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise DataError(f"{NAME}: empty; expected one document a line, as JSON or as text")
    if lines[0][1].lstrip().startswith("{"):
        return documents_in(list(_objects(lines)), asked, name=NAME)
    return documents_in([line.strip() for _, line in lines], asked, name=NAME)


def _objects(lines: list[tuple[int, str]]) -> Iterator[dict[str, Any]]:
    for number, line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{NAME}:{number}: not JSON ({error})") from None
        if not isinstance(value, dict):
            raise DataError(f"{NAME}:{number}: {line[:60]!r}; the first line is a JSON object")
        yield value


CORPUS = ("corpus.jsonl", "corpus.jsonl.gz")  # a folder in BEIR layout is read by this file
WILD = "*?["
Paths = Collection[str]  # to which links may lead


def as_documents(
    source: Any,
    *,
    id: str | None = None,
    text: str | Sequence[str] | None = None,
    title: str | None = None,
    metadata: str | Sequence[str] | None = None,
    allow: Paths = (),
    code: bool = False,
) -> Documents:
    """Return the documents of a source, to be streamed as often as needed.

    A source is the path of a folder or file, or a pattern of paths such as ``src/**/*.py``;
    ``database.sqlite#table``; ``hf:owner/name`` or ``hf:owner/name#configuration`` on the hub;
    ``-`` for standard input; a list of texts (their ids are 0 to n - 1), of (id, text) pairs, of
    mappings or of ``Document``; a mapping of ids to texts; a frame of pandas or polars, an Arrow
    table, or a dataset of the ``datasets`` library. An iterator is read once.

    In a folder each file of text, Markdown, HTML or PDF is a document, whose id is its path; a
    folder of tables only (csv, JSON lines, Parquet, ...) is one table in parts.

    ``id``, ``text``, ``title`` and ``metadata`` name columns, ``text`` and ``metadata`` also lists
    of them; without, columns are chosen by their usual names, and ``described`` says which.
    ``id="row"`` numbers the rows, ``metadata=[]`` leaves all metadata out. Links in a folder that
    lead out of it are followed to places below the paths in ``allow`` only.

    ``code`` reads a folder of program code: its functions and classes are the documents, see
    ``documents_of_code``.

    Raises ``DataError`` where no column or more than one could be the text, and when documents are
    read, for a row that is none and for an id that occurs twice.
    """
    asked = Asked.of(id, text, title, metadata)
    if isinstance(source, Documents):
        if asked.anything:
            raise ConfigError("documents: their columns are chosen already; pass the source itself")
        return source
    if code:
        if asked.anything or not isinstance(source, str | Path):
            raise ConfigError("code: is for a folder of code, without columns; leave it out")
        return documents_of_code(source, allow=allow)
    if isinstance(source, str | Path):
        return _named_documents(source, asked, allow=allow)
    alone = isinstance(source, Mapping) and {"id", "text"} <= source.keys()
    if isinstance(source, Document | bytes) or alone:
        raise DataError(f"{source!r:.80}: one item; expected several: pass a list")
    frame = documents_in_frame(source, asked)
    if frame is not None:
        return frame
    if isinstance(source, Mapping):
        return documents_by_id(source, asked)
    if isinstance(source, Iterable):
        return documents_in(source, asked)
    raise DataError(f"{source!r:.80}: cannot be read; {EXPECTED}, in a list, a file or a frame")


def documents_below(root: Path, source: str, columns: Mapping[str, Any]) -> Documents:
    """Return the documents of a source to change an index over the folder ``root``.

    Files of text that lie in ``root`` have the ids that they have there: their paths below it.
    """
    if not is_source(source) or source == "-" or source.startswith("hf:"):
        return as_documents(source, **columns)
    folder = Path(os.path.abspath(root))  # noqa: PTH100  (`..` without links)
    path = Path(os.path.abspath(expanded(source)))  # noqa: PTH100
    if not path.is_relative_to(folder):  # one of the two may be named by way of a link
        folder, path = folder.resolve(), path.resolve()
        if not path.is_relative_to(folder):
            return as_documents(source, **columns)
    if columns.get("code"):
        return documents_of_code(path, folder, columns.get("allow") or ())
    named = (columns.get(name) for name in Asked._fields)
    return _named_documents(str(path), Asked.of(*named), folder, columns.get("allow") or ())


def is_source(name: str | Path) -> bool:
    """Return whether a name is that of files, a table or a place that ``as_documents`` reads."""
    text = str(name)
    if text == "-" or text.startswith("hf:") or expanded(text).exists():
        return True
    file = text.rpartition("#")[0]
    return bool(file and expanded(file).is_file()) or any(sign in text for sign in WILD)


def _named_documents(
    source: str | Path, asked: Asked, root: Path | None = None, allow: Paths = ()
) -> Documents:
    """Return the documents of a path, a pattern of paths, a name on the hub, or a pipe.

    Ids of files of text are paths below ``root``, or else below what the source names.
    """
    name = str(source)
    if name == "-":
        return documents_in_pipe(asked)
    if name.startswith("hf:"):
        from sluice.retrieval.documents.readers.frames import documents_on_hub

        return documents_on_hub(name.removeprefix("hf:"), asked)
    path = expanded(name)
    if path.is_dir():
        return _folder(shown(path), path, asked, root, allow)
    if path.exists():
        return _file(shown(path), path, asked, root)
    file, _, table = name.rpartition("#")
    if file and expanded(file).is_file():
        path = expanded(file)
        named = f"{shown(path)}#{table}"
        return documents_in_tables(named, path.parent, [path], asked, table=table)
    if any(sign in name for sign in WILD):
        return _pattern(shown(path), path, asked, root, allow)
    near = [e.name for e in path.parent.iterdir() if e != path] if path.parent.is_dir() else []
    missing = "a broken link" if path.is_symlink() else "no such file or folder"
    hint = "; a text is passed in a list" if " " in name else suggest(path.name, near)
    raise DataError(f"{name}: {missing}{hint}")


def _file(name: str, path: Path, asked: Asked, ids_below: Path | None) -> Documents:
    if form_of_table(path) is not None:
        return documents_in_tables(name, path.parent, [path], asked)
    if kind_of_file(path) is not None:
        return one_file(path, asked, ids_below)
    ending = f"of the kind {path.suffix}" if path.suffix else "without an ending"
    raise DataError(
        f"{name}: files {ending} are not read; known are {' '.join([*FORMS, *KINDS])}; to read it "
        f"as text give a pattern: '{path.parent}/*{path.suffix}'"
    )


def _folder(name: str, path: Path, asked: Asked, base: Path | None, allow: Paths) -> Documents:
    tops = (path / part for part in CORPUS if not leads_out(path / part, path, allow))
    corpus = next((file for file in tops if file.is_file()), None)
    if corpus is not None:
        return documents_in_tables(str(corpus), path, [corpus], asked)
    if any((path / part).exists() for part in OUTPUTS):
        raise DataError(
            f"{name}: holds an experiment or a retriever, not documents; search it with: sluice "
            f'search {name} "..."'
        )
    notes = Notes()
    files = listed_files(name, path, notes, allow)
    tables = [file for file in files if form_of_table(file) is not None]
    forms = {form_of_table(file) for file in tables}
    if len(forms) == 1 and not any(kind_of_file(file) for file in files):
        return _noting(documents_in_tables(name, path, tables, asked), notes, rows=True)
    return _noting(documents_of_files(name, base or path, files, asked), notes)


def _noting(documents: Documents, notes: Notes, rows: bool = False) -> Documents:
    """Return documents that know what was not read; of ``rows`` nobody knows which those are."""
    documents.unread |= {"."} if rows and notes.unread else notes.unread
    return documents


def _pattern(name: str, path: Path, asked: Asked, base: Path | None, allow: Paths) -> Documents:
    """Return the documents of the files that a pattern matches, tables or texts."""
    parts = path.parts
    wild = next(place for place, part in enumerate(parts) if any(sign in part for sign in WILD))
    root, notes = Path(*parts[:wild]), Notes()
    files = sorted(
        file
        for file in root.glob(str(Path(*parts[wild:])))
        if not any(p.startswith(".") for p in file.relative_to(root).parts)
        and notes.stays(file, root, allow)
        and file.is_file()
    )
    notes.report(name)
    if not files:
        raise DataError(f"{name}: matches no file; is the pattern quoted, and below {root}?")
    forms = {form_of_table(file) for file in files}
    if len(forms) == 1 and None not in forms:
        return _noting(documents_in_tables(name, root, files, asked), notes, rows=True)
    return _noting(documents_of_files(name, base or root, files, asked, any_text=True), notes)
