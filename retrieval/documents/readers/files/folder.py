"""Reads a folder of files, or the files of a pattern: one document each, named by its path."""

from __future__ import annotations

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import plural
from sluice.encoders.foundation.trust import leads_out
from sluice.retrieval.documents.columns import MetadataReader
from sluice.retrieval.documents.document import NOTHING, Document
from sluice.retrieval.documents.readers.contents import contents_of
from sluice.retrieval.documents.readers.documents import Documents, Placed, say
from sluice.retrieval.documents.readers.fields import Asked, stored
from sluice.retrieval.documents.readers.files.encodings import FALLBACK
from sluice.retrieval.documents.readers.files.kinds import (
    EXTRA,
    SPELLED,
    Unreadable,
    is_installed,
    kind_of_file,
    missing_package,
)
from sluice.retrieval.documents.readers.files.text_files import read_text_file

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
            self.left_out[reason].append(_id(path, root))
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


def listed_files(name: str, root: Path, notes: Notes, allow: Collection[str] = ()) -> list[Path]:
    """Return the files below a folder, sorted by their paths; note and report what is left out.

    Hidden files and folders, ``node_modules``, ``__pycache__`` and the outputs of experiments are
    passed over, and so are links that lead out of the folder to no allowed path. Other links are
    followed; a folder that was reached already is not read again, so that circles end.
    """

    def stays(path: Path) -> bool:
        return not path.is_symlink() or notes.stays(path, root, allow)

    def failed(error: OSError) -> None:
        notes.left_out[f"not readable ({error.strerror})"].append(_id(Path(error.filename), root))

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
            if each not in PASSED_OVER and not each.startswith(".") and stays(Path(folder, each))
        )
        shown = [Path(folder, each) for each in names if not each.startswith(".")]
        files += filter(stays, shown)
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
            unread.add(_id(file, root))
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
        path = _id(file, root)
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


def _id(file: Path, root: Path) -> str:
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
