"""Checks numbers from callers (counts, cutoffs, seeds, weights); writes counts and times."""

from __future__ import annotations

import math
import operator
from itertools import pairwise
from numbers import Real
from typing import Any

from sluice.encoders.foundation.errors import ConfigError


def whole_number(value: Any, name: str, least: int, most: int | None = None) -> int:
    """Return ``value`` as an int if it is a whole number from ``least`` to ``most``.

    Accepts numpy's integers, but not booleans or floats; the ``ConfigError`` names it ``name``.
    """
    upwards = f"{least} or more" if most is None else f"{least} to {most}"
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        raise ConfigError(f"{name} is {value!r}, expected a whole number, {upwards}")
    return number


def is_number(value: Any) -> bool:
    """Return whether ``value`` is a finite number, numpy's included and booleans excluded."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def finite_number(value: Any, name: str, least: float = -math.inf, most: float = math.inf) -> float:
    """Return ``value`` as a float if it is a finite number from ``least`` to ``most``.

    The ``ConfigError`` names it ``name``.
    """
    if is_number(value) and least <= value <= most:
        return float(value)
    expected = f"a number from {least:g} to {most:g}"
    if most == math.inf:
        expected = "a finite number" if least == -math.inf else f"a number, {least:g} or more"
    raise ConfigError(f"{name} is {value!r}, expected {expected}")


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 query``, ``1,200 queries``."""
    if count == 1:
        return f"1 {noun}"
    regular = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {regular}"


def duration(seconds: float) -> str:
    """Return a time as people say it: ``0.4 s``, ``12 s``, ``2 min 14 s``, ``1 h 5 min``."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    units = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
    for (size, name), (below, lesser) in pairwise(units):
        if whole >= size:
            rest = round(whole % size / below)
            if rest * below == size:  # 59.7 minutes: one more of the larger unit
                return duration(whole - whole % size + size)
            return f"{whole // size:,} {name}" + (f" {rest} {lesser}" if rest else "")
    return f"{whole} s"


def spelled_bytes(size: float) -> str:
    """Return a size as text: ``1.5 GB``, in powers of 1,000."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
