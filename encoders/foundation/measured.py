"""What is fastest on this machine: timed here, in milliseconds, once, and remembered.

A processor's flags say which instructions it has, not which are fast. Where there are several ways
to the same result, each is timed at its first use; the answer is kept in the cache folder, by
processor, threads, and the libraries' versions.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sluice.encoders.foundation.disk.files import cache_folder, write_json
from sluice.encoders.foundation.errors import ConfigError, suggest

ARITHMETIC = "SLUICE_ARITHMETIC"
BUDGET = 0.02  # seconds for all ways together, once each of them has run
MARGIN = 1.03  # as fast as this must another way be to be taken in place of the first
_FILE = "measured.json"
# They hide instructions from a library, and so change what is fast.
_MASKS = (
    "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "NUMBA_CPU_NAME",
    "NUMBA_CPU_FEATURES", "ONEDNN_DEFAULT_FPMATH_MODE", "ATEN_CPU_CAPABILITY",
)  # fmt: skip
_LOCK = threading.Lock()
_HERE: dict[str, dict[str, float]] = {}  # what this process has measured or read


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of each way to the same result; the first is the one to beat."""

    seconds: dict[str, float]

    @property
    def fastest(self) -> str:
        """The fastest way: the first unless another is faster by more than chance."""
        first = next(iter(self.seconds))
        best = min(self.seconds, key=self.seconds.__getitem__)
        return best if self.seconds[best] * MARGIN <= self.seconds[first] else first

    def __str__(self) -> str:
        """Return the choice with its reason: ``float32: 1.8 times as fast as bfloat16 here``."""
        best = self.fastest
        others = sorted((each for each in self.seconds if each != best), key=self.seconds.get)  # type: ignore[arg-type]
        if not others:
            return f"{best}: the only one here"
        faster = self.seconds[others[0]] / self.seconds[best]
        return f"{best}: {faster:.1f} times as fast as {others[0]} here"


def measured(
    task: str,
    ways: Mapping[str, Callable[[], object]],
    *,
    clock: Callable[[], float] = time.process_time,
) -> Measured:
    """Return how long each way to do ``task`` takes here, from an earlier time if there was one.

    Each is called once, then all in turn for ``BUDGET`` seconds; the shortest time of each counts.
    It is the processor's time: beside other busy processes the clock's differs threefold from one
    time to the next, this one by a tenth.
    ``task`` names all that the times depend on but the machine: shapes, threads, versions.
    """
    file, key = cache_folder() / _FILE, f"{task}; {machine()}"
    with _LOCK:
        known = _HERE.get(key)
        if known is None and forced() != "measure":
            known = _kept(file).get(key)
        if known is None or set(known) != set(ways):
            known = _timed(ways, clock)
            with suppress(OSError, ConfigError):  # one that cannot write measures again next time
                file.parent.mkdir(parents=True, exist_ok=True)
                write_json(file, {**_kept(file), key: known})
        _HERE[key] = known
    return Measured({each: known[each] for each in ways})


def _timed(
    ways: Mapping[str, Callable[[], object]], clock: Callable[[], float]
) -> dict[str, float]:
    best = dict.fromkeys(ways, float("inf"))
    for run in ways.values():  # what is made at the first call is made
        run()
    start = clock()
    while True:
        for name, run in ways.items():
            before = clock()
            run()
            best[name] = min(best[name], clock() - before)
        if clock() - start >= BUDGET:
            return best


def forced() -> str:
    """Return the arithmetic that ``$SLUICE_ARITHMETIC`` asks for, or ``measure``, or nothing."""
    known = ("float32", "bfloat16", "int8", "measure")
    wanted = os.environ.get(ARITHMETIC, "").strip().lower()
    if wanted and wanted not in known:
        raise ConfigError(
            f"{ARITHMETIC}: {wanted!r}; expected {', '.join(known)}{suggest(wanted, known)}"
        )
    return wanted


@contextmanager
def arithmetic(name: str) -> Iterator[None]:
    """Ask for an arithmetic in a block, whatever is faster; an empty name asks for nothing."""
    before = os.environ.get(ARITHMETIC)
    if name:
        os.environ[ARITHMETIC] = name
    try:
        yield
    finally:
        if before is not None:
            os.environ[ARITHMETIC] = before
        elif name:
            del os.environ[ARITHMETIC]


@functools.cache
def machine() -> str:
    """Return the processor's name and what hides its instructions from the libraries."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        facts = Path("/proc/cpuinfo").read_text()
        parts = dict(re.findall(r"^(cpu family|model|model name|stepping)\s*: (.+)$", facts, re.M))
        name = " ".join(parts[each] for each in sorted(parts))
    masks = (f"{each}={os.environ[each]}" for each in _MASKS if each in os.environ)
    return "; ".join((name, *masks))


def _kept(file: Path) -> dict[str, dict[str, float]]:
    """Return the times that earlier processes measured; what is damaged is left out."""
    try:
        kept = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {
        task: ways
        for task, ways in (kept.items() if isinstance(kept, dict) else ())
        if isinstance(ways, dict)
        and all(isinstance(took, float) and took > 0 for took in ways.values())
    }
