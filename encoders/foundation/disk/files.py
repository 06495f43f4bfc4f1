"""Files that change in one step, and locks on them; JSON, hashes.

Every writer keeps to one protocol. Its draft is hidden, has a name of its own and stays locked by
the process that writes it; its bytes, and a folder's entries, are flushed to the disk; it is
renamed; the folder's entries are flushed. An exception removes the draft. One that a killed process
left is locked by nobody, and the next writer in that folder removes it. No reader sees any.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.errors import (
    ConfigError,
    DataError,
    IndexFormatError,
    ModelError,
    SluiceError,
)
from sluice.encoders.foundation.processes import is_alive


class OwnLock:
    """A reentrant lock; a pickled or deep copy of what holds it has a free one of its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[OwnLock], tuple[()]]:
        return OwnLock, ()


def lock_file(path: Path) -> IO[bytes]:
    """Open the file of a lock, made if it is missing, whose content nobody changes.

    ``OSError`` for a link: in somebody else's folder it may lead to any file.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag
    return os.fdopen(os.open(path, flags, 0o666), "r+b", buffering=0)


if importlib.util.find_spec("fcntl") is not None:  # ``flock``; below what does the same on Windows
    import fcntl

    def lock(stream: IO[Any] | int, *, shared: bool = False, wait: bool = True) -> bool:
        """Lock an open file and return whether it is locked; closing the file unlocks it.

        A ``shared`` lock excludes exclusive ones only. With ``wait=False`` a lock that another
        process holds is not waited for. A second call replaces the lock of the first.
        """
        how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        try:
            fcntl.flock(stream, how)
        except OSError:
            if wait:
                raise
            return False
        return True

else:  # Windows
    import ctypes
    import msvcrt

    WAITLESS, EXCLUSIVE = 1, 2  # LOCKFILE_FAIL_IMMEDIATELY, LOCKFILE_EXCLUSIVE_LOCK

    def lock(stream: IO[Any] | int, *, shared: bool = False, wait: bool = True) -> bool:
        """Lock an open file and return whether it is locked; closing the file unlocks it.

        As above. ``LockFileEx`` does not replace a lock of the same process, so it is freed first.
        """
        kernel: Any = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
        number = stream if isinstance(stream, int) else stream.fileno()
        handle = msvcrt.get_osfhandle(number)  # type: ignore[attr-defined]
        place = (ctypes.c_ulonglong * 4)()  # OVERLAPPED, all zero: the first byte
        kernel.UnlockFileEx(handle, 0, 1, 0, ctypes.byref(place))
        flags = (0 if shared else EXCLUSIVE) | (0 if wait else WAITLESS)
        locked = bool(kernel.LockFileEx(handle, flags, 0, 1, 0, ctypes.byref(place)))
        if wait and not locked:
            raise OSError(f"{getattr(stream, 'name', stream)}: cannot be locked")
        return locked


NAME = re.compile(r"\..+\.(\d+)-[0-9a-f]{8}\.tmp", re.DOTALL)
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
POSIX = os.name == "posix"  # Windows neither locks nor flushes folders


@contextmanager
def new_draft(path: Path, *, folder: bool = False, mode: int = 0o666) -> Iterator[Path]:
    """Yield an empty file or folder beside ``path``, which ``commit`` puts in its place.

    What was not committed when the block ends is removed, and so is what killed writers left there.
    An ``OSError`` that names no file, as that of a full disk, gets the name of ``path``.
    """
    remove_abandoned(path.parent)
    draft, handle = None, None
    try:
        draft, handle = _locked(path, folder, mode)
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


def _locked(path: Path, folder: bool, mode: int) -> tuple[Path, int | None]:
    """Make a draft and lock it as long as the returned handle is open."""
    while True:
        draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        if folder:
            draft.mkdir()
        else:
            draft.touch(mode, exist_ok=False)
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
def replaced_file(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Yield a stream of bytes that takes ``path``'s place when the block ends without an exception.

    Bytes and name are on disk by then: a kill at any instant leaves the old file or the new one.
    An exception leaves the old file and no draft. Who may use the file says ``mode``, within the
    umask. ``ConfigError`` if ``path`` is a folder.
    """
    with new_draft(writable(path), mode=mode) as draft:
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


def cache_folder() -> Path:
    """Return the folder of what can be rebuilt: ``$SLUICE_CACHE``, else in the user's cache."""
    place = os.environ.get("SLUICE_CACHE")
    return expanded(place or "~/.cache/sluice")


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
