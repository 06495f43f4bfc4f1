"""The process and its system: cores, numerical libraries, memory and giving it back, others."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SYSTEM = Path("/")
_PROC = Path("/proc/self")
# They say how OpenMP waits: any OpenMP; GCC's; Intel's and LLVM's.
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
KEEPING = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY")
TORCH = ("LRU_CACHE_CAPACITY",)
KEPT_BY_TORCH = 64  # queries one by one take as long with it as with 1,024
KEPT_SHAPES = 320  # of 1,024: queries one by one take as long; with 256, 1.04 times; with 64, 1.21


def cores() -> int:
    """Return the number of cores that this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS and Windows


def peak_memory_bytes() -> int:
    """Return the most resident bytes that this process has had.

    On Linux only since the last ``peak_memory`` block began, if there was one.
    """
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


class _Part:
    """A block that is measured; blocks inside it make it forget nothing."""

    def __init__(self) -> None:
        self._seen = 0

    def note(self) -> None:
        """Remember the peak so far, which the next block inside will forget."""
        self._seen = self()

    def __call__(self) -> int:
        return max(self._seen, _peak())


_OPEN: list[_Part] = []


@contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the most resident bytes since the block began.

    On Linux the kernel's high-water mark is reset first; elsewhere, and where that is not allowed,
    the peak is that since the process started. Blocks may lie in each other.
    """
    for outer in _OPEN:
        outer.note()
    if (_PROC / "clear_refs").exists():
        with suppress(OSError):
            (_PROC / "clear_refs").write_text("5")  # resets VmHWM, see proc(5)
    part = _Part()
    _OPEN.append(part)
    try:
        yield part
    finally:
        _OPEN.remove(part)


def _peak() -> int:
    try:
        line = re.search(r"VmHWM:\s+(\d+) kB", (_PROC / "status").read_text())
    except OSError:
        line = None
    return 1024 * int(line[1]) if line else peak_memory_bytes()


def free_memory_bytes() -> int | None:
    """Return the bytes that this process may still take without swapping; None where unknown.

    That is what the system has left, or less: what the process's container (cgroup v2) has left,
    where cached files count as free, as they give way.
    """
    free = []
    with suppress(OSError):
        line = re.search(r"MemAvailable:\s+(\d+) kB", (_SYSTEM / "proc/meminfo").read_text())
        free += [1024 * int(line[1])] if line else []
    with suppress(OSError, ValueError):  # the limit of no limit is "max"
        group = _SYSTEM / "sys/fs/cgroup"
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        facts = (group / "memory.stat").read_text()
        cached = sum(map(int, re.findall(r"^(?:in)?active_file (\d+)$", facts, re.MULTILINE)))
        free.append(max(0, limit - used + cached))
    return min(free, default=None)


def give_back_memory() -> None:
    """Collect what nothing refers to, and give the free memory back to the system.

    A trainer is a circle of references, so that its optimizer stays until it is collected.
    """
    gc.collect()
    trim_memory()


def trim_memory() -> None:
    """Give the free memory back to the system; it takes some ten milliseconds.

    glibc keeps what is freed, and batches of ever other sizes find little in it that fits: the
    process grows by hundreds of megabytes that nobody uses. Elsewhere nothing happens.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], object] | None:
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none


def is_alive(process: int) -> bool:
    """Return whether a process of that number is running."""
    if os.name == "nt":  # where signal 0 is Ctrl+C, and would be sent
        import psutil

        return bool(psutil.pid_exists(process))
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True


def set_up_libraries() -> None:
    """Ask for sleeping threads and a smaller cache of shapes, here and in processes started here.

    OpenMP's threads spin between two parallel loops, by default. On a core that another process
    needs too, they take the time that the thread they wait for would have worked in. oneDNN keeps
    the code it makes for every shape of a product, and torch a second time what oneDNN made (1,024
    shapes of each kind); batches without padding have a new shape each, and nearly all that is kept
    of them is never used again, some 200 KB each: the process would grow by 8 MB a step.

    What the environment says already stays, and nothing changes where torch is loaded, which has
    read it.
    """
    if "torch" in sys.modules:
        return
    settings = (
        (WAITING, "passive"),
        (KEEPING, str(KEPT_SHAPES)),
        (TORCH, str(KEPT_BY_TORCH)),
    )
    for names, value in settings:
        if not any(name in os.environ for name in names):
            os.environ[names[0]] = value
