"""The most memory this process held while something ran."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PROC = Path("/proc/self")


@contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the peak of resident bytes since the block began.

    On Linux the kernel's high-water mark is reset first; elsewhere, and where that is not allowed,
    it is the process' own peak since its start.
    """
    if (_PROC / "clear_refs").exists():
        with suppress(OSError):
            (_PROC / "clear_refs").write_text("5")  # resets VmHWM, see proc(5)
    yield _peak


def _peak() -> int:
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", (_PROC / "status").read_text())
    except OSError:
        found = None
    if found:
        return 1024 * int(found[1])
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
