"""Conditions on metadata in SQL: keys and values are parameters, never a part of the statement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing.databases.conditions import Condition

SIGNS = {"gte": ">=", "gt": ">", "lte": "<=", "lt": "<"}


def where_sql(conditions: Sequence[Condition]) -> tuple[str, list[Any]]:
    """Return a condition of SQL with places for parameters, and the parameters; "" of none."""
    parts, values = [], list[Any]()
    for condition in conditions:
        text, own = _condition(condition)
        parts.append(text)
        values += own
    return " AND ".join(parts), values


def _condition(condition: Condition) -> tuple[str, list[Any]]:
    key, operator, values = condition
    _check_text(key, key)
    for value in values:
        _check_text(key, value)
    if operator in SIGNS:
        return _order(key, SIGNS[operator], values[0])
    parts, parameters = [], list[Any]()
    for value in values:
        if value is None:
            parts.append("NOT COALESCE(metadata ? %s, false)")
            parameters.append(key)
        else:
            # Of a list of texts, too: an array contains each of its values.
            parts.append("COALESCE((metadata -> %s::text) @> %s::jsonb, false)")
            parameters += [key, json.dumps(value)]
    either = " OR ".join(parts) or "false"
    return (f"NOT ({either})" if operator == "not" else f"({either})"), parameters


def _order(key: str, sign: str, value: Any) -> tuple[str, list[Any]]:
    if isinstance(value, str):
        kind, compared = "string", f'(metadata ->> %s::text) COLLATE "C" {sign} %s::text'
    else:
        kind, compared = "number", f"(metadata ->> %s::text)::numeric {sign} %s::numeric"
        value = json.dumps(value)
    # CASE and not AND: a database may evaluate the parts of an AND in any order.
    text = f"(CASE jsonb_typeof(metadata -> %s::text) WHEN '{kind}' THEN {compared} ELSE false END)"
    return text, [key, key, value]


def _check_text(key: str, value: Any) -> None:
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"where.{key}: has a zero character, which PostgreSQL has in no text")
