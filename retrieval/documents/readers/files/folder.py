"""Reads a folder of files, text, Markdown, HTML or PDF: one document each, named by its path."""

from __future__ import annotations

import codecs
import functools
import io
import logging
import os
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.bounded_input import LONGEST, open_bytes
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import plural
from sluice.encoders.foundation.trust import leads_out
from sluice.retrieval.documents.columns import MetadataReader
from sluice.retrieval.documents.document import NOTHING, Document
from sluice.retrieval.documents.readers.documents import Documents, Placed, contents_of, say
from sluice.retrieval.documents.readers.fields import Asked, stored
from sluice.retrieval.documents.readers.files.kinds import (
    EXTRA,
    SPELLED,
    Text,
    Unreadable,
    html_text,
    is_installed,
    kind_of_file,
    missing_package,
)
from sluice.retrieval.documents.text import headings

MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
FALLBACK = "cp1252"  # Latin-1 as Windows has it
BLOCK = 1 << 20
BINARY = 8192  # bytes looked at for a zero, which no text has


def encoding_of(path: Path) -> str:
    """Return the encoding of a whole file, gzipped or not, found by decoding it once."""
    stat = path.stat()
    return _encoding_of(path, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(64)
def _encoding_of(path: Path, size: int, changed: int) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_bytes(path) as stream:
        block = stream.read(BLOCK)
        for mark, name in MARKS.items():
            if block.startswith(mark):
                return name
        try:
            while block:
                decoder.decode(block)
                block = stream.read(BLOCK)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return FALLBACK
    return "utf-8"


def decoded(data: bytes) -> tuple[str, str] | None:
    """Return the text of bytes and its encoding; None for binary data.

    Bytes that are not UTF-8 are read as Windows-1252, where a byte without a meaning becomes the
    replacement character.
    """
    for mark, name in MARKS.items():
        if data.startswith(mark):
            return data.decode(name, "replace"), name
    if b"\0" in data[:BINARY]:
        return None
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return data.decode(FALLBACK, "replace"), FALLBACK


# A small file may name one page, or one drawing, a million times: the operations of drawing and the
# pages, each as a thousand of these, are counted.
STEPS = 200_000
STEPS_PER_BYTE = 4
PAGE = 1_000


def pdf_text(data: bytes) -> Text:
    """Return the pages' text, a blank line between them; metadata are pages, author and date.

    Encrypted files are read where the empty password opens them.
    """
    if not is_installed("pdf"):
        raise missing_package("pdf")
    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # remarks on every small fault
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise Unreadable("encrypted")
        pages = list(_texts(reader, STEPS + STEPS_PER_BYTE * len(data)))
        own: Any = reader.metadata or {}
        title, author, created = own.get("/Title"), own.get("/Author"), own.get("/CreationDate")
    except Unreadable:
        raise
    except Exception as error:  # a parser of damaged files raises whatever they make it raise
        raise Unreadable(f"damaged PDF ({type(error).__name__})") from None
    metadata: dict[str, Any] = {"pages": len(pages)}
    if author and str(author).strip():
        metadata["author"] = str(author).strip()
    if created and str(created).startswith("D:") and str(created)[2:10].isdigit():
        day = str(created)[2:10]
        metadata["date"] = f"{day[:4]}-{day[4:6]}-{day[6:]}"
    text = "\n\n".join(page.strip() for page in pages if page.strip())
    # Half a surrogate pair can come out of a damaged font; no file can hold one.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return Text(str(title or "").strip(), text, metadata)


def _texts(reader: Any, steps: int) -> Iterator[str]:
    """Yield the pages' texts; raises ``Unreadable`` for more than so many steps."""

    def counted(*_: object) -> None:
        nonlocal steps
        steps -= 1
        if steps < 0:
            raise Unreadable("a PDF that draws more than its size explains")

    for page in reader.pages:
        steps -= PAGE
        yield page.extract_text(visitor_operand_before=counted)
        counted()


LONGEST_PDF = 1 << 30  # bytes; most of a large one are pictures
FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\r?\n(.*?)(?:\r?\n)?\1[ \t]*(?:\r?\n|\Z)", re.S)


def read_text_file(path: Path, kind: str) -> Text:
    """Read a file; raises ``Unreadable`` for one that is damaged, binary or without text."""
    longest = LONGEST_PDF if kind == "pdf" else LONGEST
    try:
        with open_bytes(path) as stream:
            data = stream.read(longest + 1)
    except DataError as error:
        raise Unreadable(str(error).removeprefix(f"{path}: ")) from None
    except (OSError, EOFError, zlib.error) as error:
        raise Unreadable(f"not readable ({getattr(error, 'strerror', None) or error})") from None
    if len(data) > longest:
        raise Unreadable(f"larger than {longest >> 20} MB")
    if not data.strip():
        raise Unreadable("empty")
    if kind == "pdf":
        read = pdf_text(data)
    elif kind == "html":
        read = html_text(data)
    else:
        text = decoded(data)
        if text is None:
            raise Unreadable("binary")
        read = _marked_text(*text, markdown=kind == "markdown")
    if not read.text.strip() and not read.title.strip():
        raise Unreadable("without text (a scan?)" if kind == "pdf" else "without text")
    return read


def _marked_text(text: str, encoding: str, *, markdown: bool) -> Text:
    """Return a text without its front matter, titled by this or by the first heading.

    A heading that opens the text and becomes the title is not repeated in the text.
    """
    text, own = _front_matter(text) if markdown else (text, {})
    written = own.pop("title", None)
    title = written.strip() if isinstance(written, str) else ""
    first = next(headings(text), None)
    if first is not None and (not title or first.title == title):
        title = first.title
        if not text[: first.start].strip():
            text = text[first.end :].lstrip("\r\n")
    return Text(title, text, own, encoding if encoding == FALLBACK else "utf-8")


def _front_matter(text: str) -> tuple[str, dict[str, Any]]:
    """Split off the YAML (``---``) or TOML (``+++``) block at the beginning, if it is one."""
    block = FRONT_MATTER.match(text)
    if block is None:
        return text, {}
    try:
        if block[1] == "+++":
            import tomllib

            values: Any = tomllib.loads(block[2].replace("\r\n", "\n"))
        else:
            from sluice.encoders.foundation.bounded_input import load_yaml

            values = load_yaml(block[2])
    except Exception:  # two parsers' errors, and YAML's of dates; it is text, then
        return text, {}
    if values is None:
        return text[block.end() :], {}
    if not isinstance(values, dict):
        return text, {}
    return text[block.end() :], {str(key): value for key, value in values.items()}


PASSED_OVER = ("node_modules", "__pycache__")
OUTPUTS = ("experiment.yaml", "retriever.json")  # what Sluice itself writes is not read
LINKS = "behind links that lead out of it, which --allow PATH follows"
BROKEN = "behind broken links"
TEXTLESS = ("empty", "without text")  # reasons of files that can be read
READABLE = ".txt .md .html .pdf .rst"


@dataclass
class Notes:
    """What was noticed while files were read: why some were left out, by reason."""

    left_out: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    recoded: list[str] = field(default_factory=list)

    def stays(self, path: Path, root: Path, allow: Collection[str]) -> bool:
        """Return whether a path is there, and no link leads out of the root; note one otherwise."""
        reason = LINKS if leads_out(path, root, allow) else "" if path.exists() else BROKEN
        if reason:
            self.left_out[reason].append(file_id(path, root))
        return not reason

    @property
    def unread(self) -> set[str]:
        """The paths of what is there and cannot be read."""
        reasons = [reason for reason in self.left_out if not reason.startswith(TEXTLESS)]
        return {path for reason in reasons for path in self.left_out[reason]}

    def report(self, name: str) -> None:
        """Log one line for what was left out, and one for the files of another encoding."""
        if self.left_out:
            reasons = [
                f"{len(files):,} {reason} ({', '.join(files[:3])})"
                for reason, files in self.left_out.items()
            ]
            say(f"{name}: left out: {', '.join(reasons)}", logging.WARNING)
        if self.recoded:
            count, first = plural(len(self.recoded), "file"), ", ".join(self.recoded[:3])
            say(f"{name}: {count} not UTF-8 and read as Windows-1252: {first}", logging.WARNING)


def listed_files(
    name: str,
    root: Path,
    notes: Notes,
    allow: Collection[str] = (),
    *,
    ignored: Callable[..., bool] | None = None,
) -> list[Path]:
    """Return the files below a folder, sorted by their paths; note and report what is left out.

    Hidden files and folders, ``node_modules``, ``__pycache__`` and the outputs of experiments are
    passed over, and so are links that lead out of the folder to no allowed path. Other links are
    followed; a folder that was reached already is not read again, so that circles end.
    ``ignored(path, folder=...)`` says what else is passed over.
    """

    def stays(path: Path, *, folder: bool = False) -> bool:
        if path.name.startswith(".") or (ignored and ignored(path, folder=folder)):
            return False
        return not path.is_symlink() or notes.stays(path, root, allow)

    def failed(error: OSError) -> None:
        notes.left_out[f"not readable ({error.strerror})"].append(
            file_id(Path(error.filename), root)
        )

    files = list[Path]()
    seen: set[tuple[int, int]] = set()
    for folder, folders, names in os.walk(root, onerror=failed, followlinks=True):
        stat = os.stat(folder)  # noqa: PTH116
        place = (stat.st_dev, stat.st_ino)
        below = folder != str(root) and any(each in names for each in OUTPUTS)
        if place in seen or below:
            folders.clear()
            continue
        seen.add(place)
        folders[:] = sorted(
            each
            for each in folders
            if each not in PASSED_OVER and stays(Path(folder, each), folder=True)
        )
        files += filter(stays, (Path(folder, each) for each in names))
    notes.report(name)
    return sorted((f for f in files if f.is_file()), key=lambda file: file.relative_to(root).parts)


def documents_of_files(
    name: str, root: Path, files: Sequence[Path], asked: Asked, *, any_text: bool = False
) -> Documents:
    """Return one document a file; with ``any_text`` files of unknown endings are read as text.

    The id is the path below ``root``; metadata are the folder, the type, and what the file says of
    itself. Files without text are left out when they are read, and counted.
    """
    _refuse_columns(name, asked)
    kinds: dict[Path, str] = {}
    unread = set[str]()
    others: Counter[str] = Counter()
    lacking: Counter[str] = Counter()
    for file in files:
        kind = kind_of_file(file) or ("text" if any_text else None)
        if kind is None:
            others[file.suffix.lower() or "without an ending"] += 1
        elif not is_installed(kind):
            lacking[kind] += 1
            unread.add(file_id(file, root))
        else:
            kinds[file] = kind
    if not kinds:
        if lacking:
            raise missing_package(next(iter(lacking)))
        raise DataError(_nothing_readable(name, others))
    counts = Counter(kinds.values())
    described = f"{name}: {plural(len(kinds), 'file')} (" + ", ".join(
        f"{count:,} {SPELLED[kind]}" for kind, count in counts.most_common()
    )  # fmt: skip
    described += "), id from the path, title from front matter, heading or name"
    if asked.metadata:
        described += f", metadata: {', '.join(asked.metadata)}"
    rest = [f"{count:,} {ending}" for ending, count in others.most_common(6)]
    rest += [
        f"{count:,} {SPELLED[kind]} (to read them: pip install 'sluice-ir[{EXTRA}]')"
        for kind, count in lacking.items()
    ]
    if rest:
        described += f"; left out: {', '.join(rest)}"
    return Documents(
        name,
        lambda: _read(name, root, kinds, asked, unread),
        described=described,
        contents=lambda: contents_of(root, kinds, asked),
        guessed=True,
        parts=tuple(counts),
        unread=unread,
    )


def one_file(path: Path, asked: Asked, root: Path | None = None) -> Documents:
    """Return a single file of text as one document; what cannot be read is a ``DataError``.

    The id is the path below ``root``; without, the file's name.
    """
    root = root or path.parent
    kind = kind_of_file(path)
    if kind is not None and not is_installed(kind):
        raise missing_package(kind)
    documents = documents_of_files(str(path), root, [path], asked)

    def read() -> Placed:
        try:
            read_text_file(path, str(kind))
        except Unreadable as error:
            raise DataError(f"{path}: {error}; choose another file") from None
        return _read(str(path), root, {path: str(kind)}, asked, set())

    return Documents(
        str(path),
        read,
        described=documents.described,
        contents=lambda: documents.fingerprint,
        guessed=True,
        parts=documents.parts,
    )


def _refuse_columns(name: str, asked: Asked) -> None:
    for column, value in (("id", asked.id), ("text", asked.text), ("title", asked.title)):
        if value is not None:
            raise ConfigError(
                f"{name}: {column}={value!r} names a column, and files of text have none; leave it "
                "out"
            )


def _nothing_readable(name: str, others: Counter[str]) -> str:
    if not others:
        return f"{name}: no files in this folder; expected files such as {READABLE}"
    found = ", ".join(f"{count:,} {ending}" for ending, count in others.most_common(6))
    ending = next((each for each in others if each.startswith(".")), ".py")
    return (
        f"{name}: no file of a kind that is read ({READABLE} ...), only {found}; to read others as "
        f"text give a pattern: '{name}/**/*{ending}'"
    )


def _read(
    name: str, root: Path, kinds: Mapping[Path, str], asked: Asked, unread: set[str]
) -> Placed:
    notes, reader = Notes(), MetadataReader()
    count = 0
    for file, kind in kinds.items():
        path = file_id(file, root)
        try:
            read = read_text_file(file, kind)
        except Unreadable as error:
            notes.left_out[str(error)].append(path)
            continue
        if read.encoding == FALLBACK:
            notes.recoded.append(path)
        values = dict(_metadata(path, kind, read.metadata))
        if asked.metadata is not None:
            values = {key: value for key, value in values.items() if key in asked.metadata}
        title = read.title or Path(path.removesuffix(".gz")).stem
        yield str(file), Document(path, title, read.text, reader.kept(values) or NOTHING)
        count += 1
    notes.report(name)
    unread |= notes.unread
    reader.warn(name)
    if not count:
        raise DataError(f"{name}: none of its {plural(len(kinds), 'file')} has a text to index")


def file_id(file: Path, root: Path) -> str:
    """Return a file's path below a folder, by which its documents are named."""
    path = file.relative_to(root).as_posix() if file.is_relative_to(root) else file.as_posix()
    # A name that is not valid UTF-8 holds half surrogates, which no id can.
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _metadata(path: str, kind: str, own: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    folder = path.rpartition("/")[0]
    if folder:
        yield "folder", folder
    yield "type", kind
    for key, value in own.items():
        if (held := stored(value)) is not None:
            yield key, held
