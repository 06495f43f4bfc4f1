"""Runs a script in a fork of the test's process: nothing is imported again, which takes seconds."""

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
    child = os.fork()
    if child == 0:
        code = 1
        try:
            sys.argv = [str(script), *map(str, words)]
            runpy.run_path(str(script), run_name="__main__")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
