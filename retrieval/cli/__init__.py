"""The command line: ``sluice VERB``. An error in the input is a few lines on stderr, exit code 2.

Each other module of this room holds the verbs of one kind of work. They import what they
need when they run, so that ``sluice --help`` stays fast.

May import: everything below.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from typer.main import get_command

from sluice.encoders.foundation.errors import SluiceError
from sluice.encoders.foundation.processes import stay_awake_if_idle
from sluice.retrieval.cli.app import app
from sluice.retrieval.cli.terminal.printing import (
    disk_message,
    echo,
    os_message,
    usage_message,
    write_error,
)

__all__ = ["app", "main"]

INTERRUPTED, TERMINATED = 130, 143  # the exit codes after Ctrl-C and SIGTERM


def main() -> None:
    """Run the command line; an error in the input ends with exit code 2, SIGTERM with 143."""
    with _interrupted_by_sigterm() as terminated:
        _main(terminated)


def _main(terminated: list[int]) -> None:
    _refuse_other_encodings()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    # numpy's BLAS threads spin for 2^26 cycles after a product and starve torch's meanwhile, which
    # slows the next query's encoding (docs/experiments.md, the quickstart).
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "10")
    if sys.argv[1:2] != ["serve"]:
        stay_awake_if_idle()
    try:
        code = parser()(prog_name="sluice", standalone_mode=False)
    except SluiceError as error:
        _fail(str(error))
    except BrokenPipeError:  # `sluice ... | head`
        sys.stdout = None
        sys.exit(0)
    except OSError as error:  # no such folder, no permission, a full disk
        _fail(os_message(error))
    except MemoryError:
        _fail("not enough memory; use smaller batches, or an index that needs less")
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        if message := disk_message(error):
            _fail(message)
        if not hasattr(error, "format_message"):  # the parser's errors have it
            raise
        if error.format_message().startswith("Usage:"):  # no words at all: the help itself
            echo(error.format_message())
            sys.exit(2)
        _fail(usage_message(error))
    if code == INTERRUPTED:
        word = "terminated" if terminated else "interrupted"
        echo(f"{word}; run the same command again to continue", err=True)
        code = TERMINATED if terminated else code
    sys.exit(code if isinstance(code, int) else 0)


@functools.cache
def parser() -> Any:
    """Return the verbs with their options, made once: it takes a twentieth of a second."""
    return get_command(app)


@contextmanager
def _interrupted_by_sigterm() -> Iterator[list[int]]:
    """Let SIGTERM end the command as Ctrl-C does; yield a list that then has the signal.

    A second SIGTERM does not disturb the tidying up. A signal that is ignored stays so.
    """
    received: list[int] = []

    def interrupt(number: int, _: object) -> None:
        if not received:
            received.append(number)
            raise KeyboardInterrupt

    first = threading.current_thread() is threading.main_thread()
    ours = first and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _refuse_other_encodings() -> None:
    """End with exit code 2 if a word of the command is not UTF-8: no file could name it."""
    for word in sys.argv[1:]:
        try:
            os.fsencode(word).decode("utf-8")  # the bytes, whatever the locale made of them
        except UnicodeError:
            readable = os.fsencode(word).decode("utf-8", "backslashreplace")
            _fail(f"{readable}: is not UTF-8; expected names and texts in UTF-8")


def _fail(message: str) -> NoReturn:
    write_error(message)
    sys.exit(2)
