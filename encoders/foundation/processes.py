"""The process and its system (cores, libraries, memory), and its children: start, end, errors."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

from sluice.encoders.foundation.errors import (
    ConfigError,
    DataError,
    IndexFormatError,
    MissingPackageError,
    ModelError,
    SluiceError,
)

_SYSTEM = Path("/")
_PROC = Path("/proc/self")
# They say how OpenMP waits: any OpenMP; GCC's; Intel's and LLVM's.
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
KEEPING = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY")
TORCH = ("LRU_CACHE_CAPACITY",)
PAGES = ("THP_MEM_ALLOC_ENABLE",)
SPINS = "100000"  # turns that a thread waits awake on an idle machine: some milliseconds
_SET: set[str] = set()  # names that `set_up_libraries` has written into the environment
LOOKS = 4  # at what runs: of a busy neighbour every one tells, of a passing one not all
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
    """Ask for sleeping threads, few kept shapes and huge pages, here and in processes started here.

    OpenMP's threads spin between two parallel loops, by default. On a core that another process
    needs too, they take the time that the thread they wait for would have worked in. oneDNN keeps
    the code it makes for every shape of a product, and torch a second time what oneDNN made (1,024
    shapes of each kind); batches without padding have a new shape each, and nearly all that is kept
    of them is never used again, some 200 KB each: the process would grow by 8 MB a step. Large
    tensors lie in huge pages, where Linux has them for who asks: a training run's peak is a seventh
    lower, and it takes as long.

    What the environment says already stays, and nothing changes where torch is loaded, which has
    read it.
    """
    if "torch" in sys.modules:
        return
    settings = (
        (WAITING, "passive"),
        (KEEPING, str(KEPT_SHAPES)),
        (TORCH, str(KEPT_BY_TORCH)),
        (PAGES, "1"),
    )
    for names, value in settings:
        if not any(name in os.environ for name in names):
            os.environ[names[0]] = value
            _SET.add(names[0])


def stay_awake_if_idle() -> None:
    """Let OpenMP's threads wait awake for some milliseconds, if each has a core of its own now.

    A thread that sleeps wakes late: on an idle machine a training step takes a quarter longer for
    it. Beside a busy process it is the other way round. It is for a process that computes alone,
    as a command line does: where many threads of Python's compute, each would keep others awake.
    """
    decided_here = WAITING[0] in _SET and "torch" not in sys.modules
    if decided_here and available_threads() > 1 and _has_free_cores():
        os.environ["GOMP_SPINCOUNT"] = SPINS


def _has_free_cores() -> bool:
    for _ in range(LOOKS):
        try:
            running = int((_SYSTEM / "proc/loadavg").read_text().split()[3].split("/")[0])
        except (OSError, ValueError, IndexError):  # not Linux: it cannot be told
            return False
        if running - 1 + available_threads() <= (os.cpu_count() or 1):
            return True
        time.sleep(0.001)
    return False


GRACE = 5.0  # seconds that a process has to end by itself, where it is about to
LONGEST_PAUSE = 30.0  # seconds before a process that ends soon again is started again
# What tells a process of its group, in torch.distributed's words: a child of a member is none.
OF_GROUP: Final = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip

_ERRORS: Final[Mapping[str, type[SluiceError]]] = {
    **{each.__name__: each for each in (ConfigError, DataError, IndexFormatError, ModelError)},
    MissingPackageError.__name__: SluiceError,  # its own arguments are not the message
}


def start(
    module: str,
    *words: object,
    threads: int,
    settings: Mapping[str, str] | None = None,
    channel: Any = None,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Run a module as a program of its own, which uses so many threads; return its process.

    It has the environment of this process and finds the same modules, shows no progress, and
    belongs to no group but that of ``settings``. ``channel`` is its end of a pipe or a socket,
    whose number is its last word; here that end is closed. ``options`` are those of ``Popen``.
    """
    environment = {name: value for name, value in os.environ.items() if name not in OF_GROUP}
    if environment.get("GOMP_SPINCOUNT") == SPINS:  # it will not compute alone
        del environment["GOMP_SPINCOUNT"]
    environment |= thread_settings(threads) | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "SLUICE_PROGRESS": "0",
        **(settings or {}),
    }  # fmt: skip
    if channel is not None:
        words, options["pass_fds"] = (*words, channel.fileno()), [channel.fileno()]
    command = [sys.executable, "-m", module, *map(str, words)]
    with nullcontext() if channel is None else channel:
        return subprocess.Popen(command, env=environment, **options)


def end(processes: Sequence[subprocess.Popen[Any]], grace: float = 0.0) -> list[int]:
    """End processes, each of which has ``grace`` seconds to do so itself; return their codes."""
    for process in processes if grace else ():
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    for process in processes:
        process.kill()
    codes = [process.wait() for process in processes]
    for process in processes:
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()
    return codes


def end_after(work: Callable[[], object], code: int = 0) -> None:
    """Do work in a thread, and end this process at once behind it, whatever it does meanwhile.

    The work is to read what the parent says: its end says that the parent is gone.
    """

    def run() -> None:
        work()
        os._exit(code)

    threading.Thread(target=run, daemon=True).start()


def end_cause(code: int) -> str:
    """Return how a process ended: ``exit code 1``, ``killed``, or a signal as ``SIGSEGV``."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name  # of POSIX: Windows has no such codes
    return "killed" if name == "SIGKILL" else name


def end_phrase(code: int) -> str:
    """Return how a process ended as the end of a sentence, as ``was killed``."""
    how = end_cause(code)
    if code >= 0:
        return f"ended with {how}"
    return f"was {how}" if how == "killed" else f"died of {how}"


def longer_pause(pause: float) -> float:
    """Return the pause after ``pause`` before a process is started that ends soon each time."""
    return min(LONGEST_PAUSE, max(1.0, 2 * pause))


def describe_error(error: BaseException) -> tuple[str, str]:
    """Return what a child says of an error: the name of its class, and its message."""
    return type(error).__name__, str(error)


def error_from(name: str, message: str) -> SluiceError | None:
    """Return the error that a child has named; None for one that is not Sluice's own."""
    kind = _ERRORS.get(name)
    return None if kind is None else kind(message)


def available_threads() -> int:
    """Return the threads that this process may use: ``OMP_NUM_THREADS``, or one a core."""
    try:
        return int(os.environ["OMP_NUM_THREADS"])
    except (KeyError, ValueError):
        return cores()


def limit_threads(threads: int) -> None:
    """Let torch, and libraries that are loaded from now on, use so many threads."""
    os.environ.update(thread_settings(threads))
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(threads)


def thread_settings(threads: int) -> dict[str, str]:
    """Return the environment that gives a process so many threads."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    return {**dict.fromkeys(names, str(threads)), "TOKENIZERS_PARALLELISM": "false"}
