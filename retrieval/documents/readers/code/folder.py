"""Reads a folder of code: one document for each function, class and rest of a file."""

from __future__ import annotations

import contextlib
import io
import logging
import tokenize
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.documents.document import Document, Metadata
from sluice.retrieval.documents.readers.code.definitions import (
    LANGUAGES,
    PYTHON,
    Definition,
    definitions,
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
from sluice.retrieval.documents.readers.files.kinds import Unreadable

LARGEST = 1 << 20  # bytes of a file; what people write is smaller
LONGEST_LINE = 10_000  # characters; longer ones were made by programs
KEPT = 1 << 25  # characters whose parts are kept: a corpus is read several times, and parsed once
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
    language, signature and docstring. Files that git ignores are left out; links out of the folder
    to no path in ``allow``, and what is too large, binary or made by programs, are counted in a
    warning. A file that does not parse is cut into paragraphs; ``DataError`` for no code at all.
    """
    path = expanded(source)
    name = shown(path)
    if not path.exists():
        raise DataError(f"{source}: no such file or folder; expected a folder of code")
    folder = path if path.is_dir() else path.parent
    notes, ignored = Notes(), GitIgnore(root or folder)
    if path.is_dir():
        files = listed_files(name, path, notes, allow, ignored=ignored.ignores)
    else:
        files = [path] if notes.stays(path, root or folder, allow) else []
    code = [file for file in files if file.suffix.lower() in LANGUAGES]
    without = f"; {len(files) - len(code):,} other files and {ignored.count:,} that git ignores"
    if not code:
        raise DataError(
            f"{name}: no code in it{without}; known endings are {' '.join(LANGUAGES)}; for texts "
            "leave --code (code: true) out"
        )
    languages = Counter(LANGUAGES[file.suffix.lower()] for file in code)
    parts = ", ".join(f"{count:,} {language}" for language, count in languages.most_common(6))
    unread, cuts = set(notes.unread), _Cuts()
    return Documents(
        name,
        lambda: _read(name, root or folder, code, unread, cuts),
        described=f"{name}: {plural(len(code), 'file')} of code ({parts}), a document for each "
        f"function and class{without} are left out",
        contents=lambda: contents_of(root or folder, code, "code"),
        guessed=True,
        unread=unread,
    )


def line_of(metadata: Metadata) -> str | None:
    """Return ``path:line`` of a hit in code, None of another."""
    path, line = metadata.get(PATH), metadata.get(LINE)
    return f"{path}:{line}" if isinstance(path, str) and isinstance(line, int) else None


class _Cuts:
    """The parts of source texts; those of the first ``KEPT`` characters are kept."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[list[Definition], bool]] = {}
        self._room = KEPT

    def of(self, text: str, language: str) -> tuple[list[Definition], bool]:
        """Return what ``definitions`` returns."""
        if (known := self._kept.get((text, language))) is not None:
            return known
        made = definitions(text, language)
        if len(text) <= self._room:
            self._room -= len(text)
            self._kept[text, language] = made
        return made


def _read(name: str, root: Path, files: Sequence[Path], unread: set[str], cuts: _Cuts) -> Placed:
    notes, unparsed, empty = Notes(), list[str](), True
    for file in files:
        path, language = file_id(file, root), LANGUAGES[file.suffix.lower()]
        try:
            text, encoding = _text(file, language)
        except Unreadable as error:
            notes.left_out[str(error)].append(path)
            continue
        notes.recoded += [path] * (encoding == FALLBACK)
        cut, parsed = cuts.of(text, language)
        unparsed += [path] * (not parsed)
        for document in _documents(path, language, cut):
            yield str(file), document
            empty = False
    notes.report(name)
    unread |= notes.unread
    if unparsed:
        count, first = plural(len(unparsed), "file"), ", ".join(unparsed[:3])
        say(f"{name}: {count} not parsed, cut into paragraphs: {first}", logging.WARNING)
    if empty:
        raise DataError(f"{name}: none of its {plural(len(files), 'file')} has code to index")


def _text(file: Path, language: str) -> tuple[str, str]:
    """Return the text of a file and its encoding; raises ``Unreadable`` for one that is left out.

    A Python file may declare its encoding.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(LARGEST + 1)
    except OSError as error:
        raise Unreadable(f"not readable ({error.strerror})") from None
    if len(data) > LARGEST:
        raise Unreadable(f"larger than {LARGEST >> 20} MB")
    read = decoded(data)
    if read is None:
        raise Unreadable("binary")
    if language == PYTHON:
        with contextlib.suppress(SyntaxError, UnicodeError, LookupError):
            declared, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            read = data.decode(declared), declared
    text = read[0].encode("utf-8", "replace").decode("utf-8")
    if max(map(len, text.split("\n"))) > LONGEST_LINE:
        raise Unreadable(f"with lines of more than {LONGEST_LINE:,} characters")
    return text, read[1]


def _documents(path: str, language: str, cut: Sequence[Definition]) -> Iterator[Document]:
    times: Counter[str] = Counter()
    for each in cut:
        times[each.name] += 1
        member = each.name if times[each.name] == 1 else f"{each.name}#{times[each.name]}"
        metadata: Metadata = {
            PATH: path, LINE: each.first, "end_line": each.last, "kind": each.kind,
            "language": language, "signature": each.signature,
            # An escape in a docstring may stand for half a surrogate pair.
            "docstring": each.docstring.encode("utf-8", "replace").decode("utf-8"),
        }  # fmt: skip
        id = f"{path}{MEMBER}{member}" if member else path
        yield Document(id, each.name or Path(path).stem, each.text, metadata)
