"""Locks on open files between processes, and between threads for objects that are copied."""

from __future__ import annotations

import importlib.util
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, Any


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
