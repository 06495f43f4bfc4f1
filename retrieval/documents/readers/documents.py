"""The documents of any source as a stream that can be read again."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import file_hash, fingerprint_of
from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import distinct

LARGE = 256 << 20  # bytes from which a file is known by its size, its times and its ends
END = 1 << 20  # bytes at either end of such a file that are hashed

_KNOWN: dict[tuple[object, ...], str] = {}  # hashes in this process, by path, size and times


def contents_of(root: Path, files: Iterable[Path], *settings: object) -> str:
    """Return a hash of the files' paths below ``root`` and their contents, and of ``settings``.

    Contents, not time stamps: a copy, a checkout or ``touch`` changes nothing, and an edit that
    keeps size and time (``cp -p``, ``rsync -t``) is noticed. Reading costs about a second a
    gigabyte, so a file of ``LARGE`` bytes or more is hashed at both ends only, with its size and
    modification time.
    """
    return fingerprint_of(
        [[_relative(file, root), _hash(file)] for file in files], [repr(each) for each in settings]
    )


def _relative(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name


def _hash(file: Path) -> str:
    stat = file.stat()
    key = (str(file), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    if key not in _KNOWN:
        if stat.st_size < LARGE:
            _KNOWN[key] = file_hash(file)
        else:
            digest = hashlib.sha256(f"{stat.st_size} {stat.st_mtime_ns}".encode())
            with file.open("rb") as stream:
                digest.update(stream.read(END))
                stream.seek(-END, 2)
                digest.update(stream.read())
            _KNOWN[key] = digest.hexdigest()
    return _KNOWN[key]


log = logging.getLogger("sluice")

Placed = Iterator[tuple[str, Document]]  # where each document is, as messages name it
_SAID: set[str] = set()  # lines that were logged: a corpus is opened several times


def say(line: str, level: int = logging.INFO) -> None:
    """Log a line once in this process."""
    if line not in _SAID:
        _SAID.add(line)
        log.log(level, "%s", line)


def shown(path: Path) -> str:
    """Return a path as messages show it: from the current folder where it is below that."""
    absolute, here = path.absolute(), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else path)


def size_of(source: Any) -> int | None:
    """Return a source's length, None where it has none or does not know it yet."""
    try:
        return len(source)
    except TypeError:  # an iterator, a stream, a corpus before its first pass
        return None


class Documents:
    """Documents of a folder, a file, a frame, a list, ...; every ``iter`` reads them anew.

    ``described`` says in one line what is read, and as which columns. ``size`` is the number of
    documents, or None where only reading tells. ``fingerprint`` is a hash of the contents: equal
    contents have equal fingerprints, whatever the time stamps of their files.

    Reading raises ``DataError`` for an id that occurs twice, naming both places.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], Placed],
        *,
        described: str,
        size: int | None = None,
        contents: Callable[[], str] | None = None,
        once: bool = False,
        guessed: bool = False,
        parts: Sequence[str] = (),
        numbered: bool = False,
        unread: set[str] | None = None,
    ) -> None:
        """Wrap ``read``, which starts a new stream at each call.

        ``contents`` returns the hash of what is read; None hashes the documents. ``once`` marks a
        stream that has only one pass. ``guessed``: the description is logged when reading begins.
        ``parts`` are the kinds of text inside (``markdown``, ``html``, ...). ``numbered``: the ids
        are places in the source, which say nothing outside it. ``unread``, complete after reading:
        ids of files that are there and cannot be read; a folder's stands for all below it.
        """
        self.name = name
        self.described = described
        self.size = size
        self.parts = tuple(parts)
        self.numbered = numbered
        self.unread = set[str]() if unread is None else unread
        self._read = read
        self._contents = contents
        self._once = once
        self._guessed = guessed
        self._started = False
        self._fingerprint: str | None = None

    def __iter__(self) -> Iterator[Document]:
        if self._guessed:
            say(self.described)
        if not self._once:
            return distinct(self._read)
        if self._started:
            raise DataError(
                f"{self.name}: this stream has been read already, and has one pass only; pass a "
                "list or a file"
            )
        self._started = True
        return (document for _, document in self._read())

    def with_own_ids(self) -> Documents:
        """Return itself, to change an index; ``DataError`` where rows are numbered.

        Such a number names another document in the index, which an update would replace.
        """
        if self.numbered:
            raise DataError(
                f"{self.name}: no ids, only row numbers, and those name other documents in the "
                "index; give each document its id: a column 'id' (or the one that `sluice index` "
                "was given as --id), in Python also (id, text) pairs"
            )
        return self

    def quiet(self) -> Documents:
        """Return itself, for reading without the line that describes it: it was shown already."""
        _SAID.add(self.described)
        return self

    def __repr__(self) -> str:
        return f"Documents({self.described})"

    @property
    def fingerprint(self) -> str:
        """A hash of the contents, 32 hexadecimal digits; computed once."""
        if self._fingerprint is None:
            if self._contents is not None:
                self._fingerprint = self._contents()
            elif self._once:
                raise DataError(
                    f"{self.name}: a stream with one pass has no fingerprint; pass a list or a file"
                )
            else:
                self._fingerprint = _hash_of(self._read())
        return self._fingerprint


def _hash_of(entries: Placed) -> str:
    digest = hashlib.sha256()
    for _, document in entries:
        digest.update(fingerprint_of(*document[:3], dict(document.metadata)).encode())
    return digest.hexdigest()[:32]
