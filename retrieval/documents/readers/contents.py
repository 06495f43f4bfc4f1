"""Hashes what files contain, for deciding whether an index over them is still the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from sluice.encoders.foundation.disk.files import file_hash, fingerprint_of

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
