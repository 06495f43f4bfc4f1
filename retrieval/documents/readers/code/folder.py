"""Reads a folder of code: one document for each function, class and rest of a file."""

from __future__ import annotations

import io
import logging
import os
import tokenize
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.documents.document import Document, Metadata
from sluice.retrieval.documents.readers.code.definitions import (
    LANGUAGES,
    PYTHON,
    Definition,
    Unparsed,
    definitions,
    paragraphs,
)
from sluice.retrieval.documents.readers.code.ignored import GitIgnore
from sluice.retrieval.documents.readers.documents import (
    Documents,
    Placed,
    contents_of,
    say,
    shown,
)
from sluice.retrieval.documents.readers.files.folder import (
    FALLBACK,
    Notes,
    decoded,
    file_id,
    listed_files,
)

LARGEST = 1 << 20  # bytes of a file; what people write is smaller
LONGEST_LINE = 10_000  # characters; longer ones were made by programs
MEMBER = "::"  # between a file and what is in it, in ids
PATH, LINE = "path", "line"  # metadata
FIELDS = {"title": 2.0, "signature": 1.0, "docstring": 1.0, "text": 1.0, PATH: 0.5}
"""The fields of such a document and the weights that BM25 gives them."""


def documents_of_code(
    source: str | Path, root: Path | None = None, allow: Collection[str] = ()
) -> Documents:
    """Return the functions, classes and rests of the files in a folder, or of one file.

    An id is the path below ``root``, which is the folder, ``::`` and the qualified name. The title
    is the name, the text the source as it stands; metadata are path, line (from 1), end_line, kind,
    language, signature and docstring. Files that git ignores are left out, and so are links that
    lead out of the folder to no path in ``allow``; what is too large, binary or made by programs is
    counted in a warning. A file that does not parse is cut into paragraphs.

    Raises ``DataError`` for a folder without code.
    """
    path = expanded(source)
    name = shown(path)
    if not path.exists():
        raise DataError(f"{source}: no such file or folder; expected a folder of code")
    folder = path if path.is_dir() else path.parent
    notes, ignored = Notes(), GitIgnore(root or folder)
    files = [path]
    if path.is_dir():
        files = listed_files(name, path, notes, allow, ignored=ignored.ignores)
    code = [file for file in files if file.suffix.lower() in LANGUAGES]
    others = Counter(file.suffix.lower() or "without an ending" for file in files)
    for file in code:
        del others[file.suffix.lower()]
    rest = ", ".join(f"{count:,} {ending}" for ending, count in others.most_common(6))
    without = f"; {ignored.count:,} left out by .gitignore" if ignored.count else ""
    if not code:
        raise DataError(
            f"{name}: no code in it, only {rest or 'nothing'}{without}; known endings are "
            f"{' '.join(LANGUAGES)}; to index texts leave --code (code: true) out"
        )
    languages = Counter(LANGUAGES[file.suffix.lower()] for file in code)
    parts = ", ".join(f"{count:,} {language}" for language, count in languages.most_common(6))
    unread = set(notes.unread)
    return Documents(
        name,
        lambda: _read(name, root or folder, code, unread),
        described=f"{name}: {plural(len(code), 'file')} of code ({parts}), a document for each "
        f"function and class{f'; other files: {rest}' if rest else ''}{without}",
        contents=lambda: contents_of(root or folder, code, "code"),
        guessed=True,
        parts=tuple(languages),
        unread=unread,
    )


def line_of(metadata: Metadata) -> str | None:
    """Return ``path:line`` of a hit in code, None of another."""
    path, line = metadata.get(PATH), metadata.get(LINE)
    return f"{path}:{line}" if isinstance(path, str) and isinstance(line, int) else None


def code_below(root: Path, source: str, allow: Collection[str] = ()) -> Documents:
    """Return the code of a source to change an index over the folder ``root``."""
    folder, path = (Path(os.path.abspath(expanded(each))) for each in (root, source))  # noqa: PTH100
    if not path.is_relative_to(folder):
        folder, path = folder.resolve(), path.resolve()
        if not path.is_relative_to(folder):
            raise ConfigError(f"{source}: is not in {root}, whose code is indexed")
    return documents_of_code(path, folder, allow)


def _read(name: str, root: Path, files: Sequence[Path], unread: set[str]) -> Placed:
    notes, unparsed, empty = Notes(), list[str](), True
    for file in files:
        path, ending = file_id(file, root), file.suffix.lower()
        text = _text(file, path, notes)
        if text is None:
            continue
        try:
            cut = definitions(text, ending)
        except Unparsed:
            unparsed.append(path)
            cut = paragraphs(text)
        for document in _documents(path, LANGUAGES[ending], cut):
            yield str(file), document
            empty = False
    notes.report(name)
    unread |= notes.unread
    if unparsed:
        count, first = plural(len(unparsed), "file"), ", ".join(unparsed[:3])
        say(f"{name}: {count} not parsed, cut into paragraphs: {first}", logging.WARNING)
    if empty:
        raise DataError(f"{name}: none of its {plural(len(files), 'file')} has code to index")


def _text(file: Path, path: str, notes: Notes) -> str | None:
    """Return the text of a file, None for one that is left out; both are noted."""
    try:
        with file.open("rb") as stream:
            data = stream.read(LARGEST + 1)
    except OSError as error:
        notes.left_out[f"not readable ({error.strerror})"].append(path)
        return None
    if len(data) > LARGEST:
        notes.left_out[f"larger than {LARGEST >> 20} MB"].append(path)
        return None
    text = _declared(data) if LANGUAGES[file.suffix.lower()] == PYTHON else None
    if text is None:
        read = decoded(data)
        if read is None:
            notes.left_out["binary"].append(path)
            return None
        text, encoding = read
        if encoding == FALLBACK:
            notes.recoded.append(path)
    text = text.encode("utf-8", "replace").decode("utf-8")
    if max(map(len, text.split("\n"))) > LONGEST_LINE:
        notes.left_out[f"with lines of more than {LONGEST_LINE:,} characters"].append(path)
        return None
    return text


def _declared(data: bytes) -> str | None:
    """Return the text of a Python file in the encoding that it declares, None if it has another."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return None if b"\0" in data else data.decode(encoding)
    except (SyntaxError, UnicodeError, LookupError):
        return None


def _documents(path: str, language: str, cut: Sequence[Definition]) -> Iterator[Document]:
    times: Counter[str] = Counter()
    for each in cut:
        times[each.name] += 1
        again = f"#{times[each.name]}" if times[each.name] > 1 else ""
        member = f"{each.name}{again}"
        metadata: Metadata = {
            PATH: path, LINE: each.first, "end_line": each.last, "kind": each.kind,
            "language": language, "signature": each.signature,
            # An escape in a docstring may stand for half a surrogate pair.
            "docstring": each.docstring.encode("utf-8", "replace").decode("utf-8"),
        }  # fmt: skip
        id = f"{path}{MEMBER}{member}" if member else path
        yield Document(id, each.name or Path(path).stem, each.text, metadata)
