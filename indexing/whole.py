"""Whole numbers given by callers: counts, cutoffs, seeds."""

from __future__ import annotations

import operator
from typing import Any

from encoders.errors import ConfigError


def whole_number(value: Any, name: str, least: int, most: int | None = None) -> int:
    """Return ``value`` as an int if it is a whole number from ``least`` to ``most``.

    numpy's integers count, booleans and floats do not; ``ConfigError`` calls it ``name``.
    """
    upwards = f"{least} or more" if most is None else f"{least} to {most}"
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        raise ConfigError(f"{name} is {value!r}, expected a whole number, {upwards}")
    return number
