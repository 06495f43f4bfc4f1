"""Files that change in one step (see ``drafts``), JSON, and hashes of contents."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from sluice.encoders.foundation.drafts import commit, new_draft
from sluice.encoders.foundation.errors import (
    ConfigError,
    DataError,
    IndexFormatError,
    ModelError,
    SluiceError,
)


def file_hash(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fingerprint_of(*parts: object) -> str:
    """Return 32 hexadecimal digits that change whenever any JSON-serialisable part changes."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Make ``target`` a second name of a file; a copy on another file system, or without links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def writable(path: Path) -> Path:
    """Return the path of a file to write, its folder made; ``ConfigError`` for a folder."""
    if not path.name or path.is_dir():
        raise ConfigError(f"{path}: is a folder; give the name of a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"{path}: {error.filename} is a file; expected a folder") from None
    return path


@contextmanager
def replaced_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a stream of bytes that takes ``path``'s place when the block ends without an exception.

    Bytes and name are on disk by then: a kill at any instant leaves the old file or the new one.
    An exception leaves the old file and no draft. ``ConfigError`` if ``path`` is a folder.
    """
    with new_draft(writable(path)) as draft:
        with draft.open("wb") as stream:
            yield stream
        commit(draft, path)


@contextmanager
def packed_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a stream as ``replaced_file`` does, compressed where the name ends in ``.gz``.

    Equal contents make equal files.
    """
    with replaced_file(path) as stream:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", 6, stream, mtime=0) as packed:
                yield cast("IO[bytes]", packed)
        else:
            yield stream


def write_bytes(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` in one step."""
    with replaced_file(path) as stream:
        stream.write(data)


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` (UTF-8) in one step."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        part = ascii(text[max(error.start - 20, 0) : error.end + 20])
        raise DataError(f"{str(path)!a}: {part} is not Unicode and cannot be written") from None
    write_bytes(path, data)


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by ``value`` as indented JSON in one step."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file that Sluice wrote; ``IndexFormatError`` if it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IndexFormatError(f"{path}: no such file; expected a folder Sluice wrote") from None
    except (ValueError, OSError, RecursionError) as error:
        raise IndexFormatError(
            f"{path}: not readable as JSON ({error}); rebuild the folder"
        ) from None


def check_version(
    found: object, known: int, where: object, error: type[SluiceError] = IndexFormatError
) -> None:
    """Raise ``error`` unless a file's format version is one up to ``known``."""
    if type(found) is not int or found < 1:
        raise error(
            f"{where}: its format version is {found!r}, expected 1 to {known}; the file was edited "
            "or damaged: write it again"
        )
    if found > known:
        raise error(
            f"{where}: made by a newer version of Sluice, in format {found} (this one reads up to "
            f"{known}); upgrade sluice-ir"
        )


def read_model_json(path: Path) -> Any:
    """Read a JSON file of a model folder, None if missing; ``ModelError`` if it is damaged."""
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise ModelError(f"{path}: not readable as JSON ({error})") from None
