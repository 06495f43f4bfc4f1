"""Shows progress of long work: a bar on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol

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
    outer = _OUTER.get()
    if outer is not None:
        yield outer
    elif not show:
        yield lambda amount=1: None
    elif on_terminal():
        with _bar(label, total, unit, also) as advance:
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
def _bar(label: str, total: int | None, unit: str, also: Rate | None) -> Iterator[Advance]:
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
    with Progress(*columns, console=Console(stderr=True)) as display:
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
    log.info("%s: %s %s in %s%s", label, f"{done:,}", unit, duration(seconds), rates)
