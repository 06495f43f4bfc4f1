"""A busy neighbour for benchmarks: a process that takes all the time of a core it can get."""

from __future__ import annotations

import contextlib
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from harness import seconds_of

TARGET = 1.5  # times the idle seconds that a call may take beside one busy process
# It ends with the benchmark, however that ends.
COMPUTE = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""
SETTLED = 0.1  # seconds after which the scheduler has given the neighbour its share


class Neighbour:
    """A process that computes while it is ``busy``, and is stopped otherwise."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", COMPUTE])
        self._process.send_signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Let it compute inside the block."""
        self._process.send_signal(signal.SIGCONT)
        time.sleep(SETTLED)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def beside_neighbour(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Any]:
    """Time every call idle and beside the neighbour, in turn; print a table and return it."""
    neighbour = Neighbour()
    seconds: dict[str, dict[str, list[float]]] = {n: {"idle": [], "busy": []} for n in calls}
    try:
        for call in calls.values():
            call()
        for _ in range(rounds):
            for name, call in calls.items():
                seconds[name]["idle"].append(seconds_of(call))
                with neighbour.busy():
                    seconds[name]["busy"].append(seconds_of(call))
    finally:
        neighbour.end()
    print("| beside one busy process | idle s | busy s | ratio | |\n|---|---|---|---|---|")
    found = {}
    for name, times in seconds.items():
        idle, busy = (statistics.median(times[kind]) for kind in ("idle", "busy"))
        ratio = busy / idle
        verdict = "met" if ratio <= TARGET else "MISSED"
        print(f"| {name} | {idle:.3f} | {busy:.3f} | **{ratio:.2f}x** | {TARGET:g}x {verdict} |")
        found[name] = {"idle": idle, "busy": busy, "ratio": ratio}
    return found
