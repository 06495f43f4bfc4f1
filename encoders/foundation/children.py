"""Child processes: how one is started, what it inherits, how it ends, and its errors by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, Final

from sluice.encoders.foundation.errors import (
    ConfigError,
    DataError,
    IndexFormatError,
    MissingPackageError,
    ModelError,
    SluiceError,
)
from sluice.encoders.foundation.machine import cores

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
