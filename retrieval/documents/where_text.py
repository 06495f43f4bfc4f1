"""Filters as written on the command line: ``lang=en``, ``year>=2020``, ``lang!=["de","fr"]``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.documents.where import conditions

SYMBOLS = {">=": "gte", ">": "gt", "<=": "lte", "<": "lt", "!=": "not", "==": None, "=": None}
CONDITION = re.compile(r"\s*([^=<>!]*[^=<>!\s])\s*(>=|<=|!=|==|=|>|<)\s*(.*?)\s*", re.DOTALL)


def parse_where(texts: Iterable[str]) -> dict[str, Any]:
    """Return the ``where`` that conditions say together.

    A value that is JSON is what JSON says: a number, ``true``, ``null``, a list, a ``"text"``;
    anything else is text as it stands. Raises ``ConfigError`` for what is no condition.
    """
    where: dict[str, Any] = {}
    for text in texts:
        key, operator, value = _parsed(text)
        if operator is None and key not in where:
            where[key] = value
        elif operator is not None and isinstance(where.setdefault(key, {}), dict):
            if operator in where[key]:
                raise ConfigError(f"--where {text}: {key!r} has that condition already")
            where[key][operator] = value
        else:
            raise ConfigError(
                f"--where {text}: {key!r} has another condition, and all must hold; for any of "
                f'several values write {key}=["a","b"]'
            )
    conditions(where)
    return where


def _parsed(text: str) -> tuple[str, str | None, Any]:
    match = CONDITION.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"--where {text!r}: expected KEY=VALUE, or with one of {' '.join(SYMBOLS)} between them"
        )
    key, symbol, value = match.groups()
    try:
        found = json.loads(value, parse_constant=str)  # NaN and Infinity are no JSON but text
    except (ValueError, RecursionError):
        found = value
    if isinstance(found, dict):
        raise ConfigError(f"--where {text}: an object; expected a text, a number, or a list")
    return key, SYMBOLS[symbol], found
