"""Runs a script in forks of the test's process: nothing is imported again, which takes seconds."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path


def run_forked(script: Path, *words: object) -> int:
    """Run a script as a program; return its exit code, negative where a signal ended it.

    What it prints and the traceback of what it raises go where this process writes.
    """
    return _ended(_forked(script, words, {}))


def run_together(script: Path, *words: object, environments: list[dict[str, str]]) -> list[int]:
    """Run a script once for each environment, at the same time; return the exit codes."""
    return [_ended(child) for child in [_forked(script, words, each) for each in environments]]


def _forked(script: Path, words: tuple[object, ...], environment: dict[str, str]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ.update(environment)
        sys.argv = [str(script), *map(str, words)]
        runpy.run_path(str(script), run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
