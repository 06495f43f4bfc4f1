"""What the operating system says of this process: its cores, its memory, other processes."""

from __future__ import annotations

import os
import sys


def cores() -> int:
    """Return the number of cores that this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS and Windows


def peak_memory_bytes() -> int:
    """Return the most resident bytes that this process has had."""
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


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
