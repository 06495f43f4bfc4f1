"""Drafts: what is being written lies beside what it will replace until it is complete.

Every writer keeps to one protocol. Its draft is hidden, has a name of its own and stays locked by
the process that writes it; its bytes, and a folder's entries, are flushed to the disk; it is
renamed; the folder's entries are flushed. An exception removes the draft. One that a killed process
left is locked by nobody, and the next writer in that folder removes it. No reader sees any.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sluice.encoders.foundation.locks import lock
from sluice.encoders.foundation.machine import is_alive

NAME = re.compile(r"\..+\.(\d+)-[0-9a-f]{8}\.tmp", re.DOTALL)
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
POSIX = os.name == "posix"  # Windows neither locks nor flushes folders


@contextmanager
def new_draft(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """Yield an empty file or folder beside ``path``, which ``commit`` puts in its place.

    What was not committed when the block ends is removed, and so is what killed writers left there.
    An ``OSError`` that names no file, as that of a full disk, gets the name of ``path``.
    """
    remove_abandoned(path.parent)
    draft, handle = None, None
    try:
        draft, handle = _locked(path, folder)
        yield draft
    except OSError as error:
        name_file(error, path)
        raise
    finally:
        if draft is not None:
            _remove(draft)
        if handle is not None:
            os.close(handle)


def name_file(error: OSError, path: Path) -> None:
    """Let the error of a full or broken disk name the file that was written, not its draft."""
    named = NAME.fullmatch(Path(os.fsdecode(error.filename or "")).name)
    if error.errno is None and "requested and" in str(error):  # numpy does not say why
        error.strerror = f"not written in full ({error}); is the disk full?"
        error.filename = str(path)
    elif named or (error.filename is None and error.errno in DISK):
        error.filename, error.filename2 = str(path), None


def commit(draft: Path, path: Path) -> None:
    """Put a draft in the place of ``path``: a power cut leaves the old one or the new, whole."""
    sync_tree(draft)
    draft.replace(path)
    sync(path.parent)


def remove_abandoned(folder: Path) -> None:
    """Remove the drafts of killed processes; one that a process still writes is left alone."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in [entry for entry in entries if NAME.fullmatch(entry.name)]:
            _remove_unless_written(Path(entry.path))


def sync(path: Path) -> None:
    """Flush a file or a folder's entries to the disk.

    Windows flushes files that are open for writing only, and no folders.
    """
    if not POSIX and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if POSIX else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(path: Path) -> None:
    """Flush a file, or a folder with all that is in it."""
    for part in path.rglob("*") if path.is_dir() else ():
        sync(part)
    sync(path)


def _locked(path: Path, folder: bool) -> tuple[Path, int | None]:
    """Make a draft and lock it as long as the returned handle is open."""
    while True:
        draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        if folder:
            draft.mkdir()
        else:
            draft.touch(exist_ok=False)
        if not POSIX:
            return draft, None
        try:
            handle = os.open(draft, os.O_RDONLY if folder else os.O_RDWR)
        except FileNotFoundError:  # another writer took it for abandoned before it was locked
            continue
        except BaseException:
            _remove(draft)
            raise
        with contextlib.suppress(OSError):  # a file system without locks: nobody removes it there
            lock(handle)
        if draft.exists():
            return draft, handle
        os.close(handle)


def _remove_unless_written(draft: Path) -> None:
    if not POSIX:
        match = NAME.fullmatch(draft.name)
        if match and not is_alive(int(match[1])):
            _remove(draft)
        return
    kind = os.O_RDONLY if draft.is_dir() else os.O_RDWR
    handle = os.open(draft, kind | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if lock(handle, wait=False):
            _remove(draft)
    finally:
        os.close(handle)


def _remove(draft: Path) -> None:
    with contextlib.suppress(OSError):
        if draft.is_dir() and not draft.is_symlink():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)
