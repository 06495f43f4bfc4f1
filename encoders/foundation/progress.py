"""Shows progress of long work: a bar on a terminal, log lines elsewhere, or where one wants it."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol, TextIO

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import duration

log = logging.getLogger("sluice")
LOG_EVERY = 15.0  # seconds between plain log lines


class Advance(Protocol):
    """A callable that reports progress."""

    def __call__(self, amount: int = 1) -> None:
        """Report ``amount`` more units done."""
        ...


class Rate(NamedTuple):
    """A second rate to show, in ``unit``; one unit of the work has ``each`` of them on average."""

    unit: str
    each: float


Watcher = Callable[[str, int, int | None], None]  # label, units done, total (None: unknown)
OFF = ("0", "off", "false", "no")  # of $SLUICE_PROGRESS

_target: bool | TextIO | Watcher = True


def show_progress(to: bool | TextIO | Watcher = True) -> None:
    """Choose where progress of long work goes, for all of this process.

    True, the default: a bar on a terminal, lines of the logger ``sluice`` elsewhere. False: nowhere
    (as with the environment's ``SLUICE_PROGRESS=0``). An open text file or stream gets the bar, as
    plain lines unless it is a terminal. A function is called with the label, the units done and
    their total (None if unknown), after each step. ``ConfigError`` for anything else.
    """
    global _target
    if not (isinstance(to, bool) or hasattr(to, "write") or callable(to)):
        raise ConfigError(
            f"show_progress: {to!r:.60}; expected True, False, an open file or a function of "
            "(label, done, total)"
        )
    _target = to


def progress_target() -> bool | TextIO | Watcher:
    """Return what ``show_progress`` chose; False where the environment silences it."""
    silenced = os.environ.get("SLUICE_PROGRESS", "").strip().lower() in OFF
    return False if silenced else _target


_OUTER: ContextVar[Advance | None] = ContextVar("outer progress", default=None)


@contextmanager
def progress(
    label: str,
    total: int | None,
    unit: str = "items",
    *,
    show: bool = True,
    also: Rate | None = None,
) -> Iterator[Advance]:
    """Report work of ``total`` units (None when unknown); yields ``advance(amount)``.

    On a terminal this is a bar with rate and ETA; otherwise a log line at the end and, for long
    work, every 15 seconds. ``also`` adds a second rate. Inside ``counted_by`` nothing is shown and
    the progress counts for the outer work.
    """
    outer, target = _OUTER.get(), progress_target()
    if outer is not None:
        yield outer
    elif not show or target is False:
        yield lambda amount=1: None
    elif not isinstance(target, bool) and not hasattr(target, "write"):
        with _watched(label, total, target) as advance:
            yield advance
    elif not isinstance(target, bool) or on_terminal():
        stream: Any = sys.stderr if target is True else target
        with _bar(label, total, unit, also, stream) as advance:
            yield advance
    else:
        with _lines(label, total, unit, also) as advance:
            yield advance


def on_terminal() -> bool:
    """Return whether stderr is a terminal that somebody watches: not with $CI or TERM=dumb."""
    watched = os.environ.get("CI", "") in ("", "0", "false")
    return watched and os.environ.get("TERM") != "dumb" and sys.stderr.isatty()


@contextmanager
def counted_by(advance: Advance) -> Iterator[None]:
    """Report every ``progress`` inside the block to ``advance`` only, and show nothing else.

    For work made of parts with their own progress, in the same thread.
    """
    token = _OUTER.set(advance)
    try:
        yield
    finally:
        _OUTER.reset(token)


def _rates(rate: float, unit: str, also: Rate | None) -> str:
    second = f", {rate * also.each:,.0f} {also.unit}/s" if also else ""
    return f"{rate:,.1f} {unit}/s{second}"


@contextmanager
def _watched(label: str, total: int | None, watcher: Watcher) -> Iterator[Advance]:
    done = 0

    def advance(amount: int = 1) -> None:
        nonlocal done
        done += amount
        watcher(label, done, total)

    watcher(label, 0, total)
    yield advance


@contextmanager
def _bar(
    label: str, total: int | None, unit: str, also: Rate | None, stream: TextIO
) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=stream)) as display:
        task = display.add_task(label, total=total, rate="")
        start, done = time.monotonic(), 0

        def advance(amount: int = 1) -> None:
            nonlocal done
            done += amount
            rate = done / max(time.monotonic() - start, 1e-9)
            display.update(task, advance=amount, rate=_rates(rate, unit, also))

        yield advance


@contextmanager
def _lines(label: str, total: int | None, unit: str, also: Rate | None) -> Iterator[Advance]:
    start = last = time.monotonic()
    done = 0

    def advance(amount: int = 1) -> None:
        nonlocal done, last
        done += amount
        now = time.monotonic()
        if now - last >= LOG_EVERY:
            last = now
            rate = done / (now - start)
            left = ""
            if total and rate:
                left = f" of {total:,}, {duration((total - done) / rate)} left"
            log.info("%s: %s%s (%s)", label, f"{done:,}", left, _rates(rate, unit, also))

    yield advance
    seconds = time.monotonic() - start
    rates = f" ({_rates(done / max(seconds, 1e-9), unit, also)})" if also else ""
    unit = unit.removesuffix("s") if done == 1 else unit
    log.info("%s: %s %s in %s%s", label, f"{done:,}", unit, duration(seconds), rates)
