"""Conditions on metadata as Qdrant's filters, and what a point's payload holds for them.

A filter is written as Qdrant's REST interface has it. ``equals`` answers equality, a list of exact
words (see ``words_of``): keys need no escaping, a boolean is not a number, and 2 is 2.0.
``numbers`` answers comparisons. ``metadata`` is the document's own, for others who read the
database.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing.databases.index import Condition

Filter = Mapping[str, Any]
NOTHING: Mapping[str, Any] = MappingProxyType({})


def payload_of(
    row: int, doc_id: str | None = None, metadata: Mapping[str, Any] = NOTHING
) -> dict[str, Any]:
    """Return the payload of a point; without an id it has its row alone."""
    if doc_id is None:
        return {"row": row}
    known = {key: value for key, value in metadata.items() if value is not None}
    payload: dict[str, Any] = {"row": row, "id": doc_id}
    if known:
        payload["metadata"] = {key: _plain(value) for key, value in known.items()}
        payload["equals"] = sorted(set(words_of(known)))
        numbers = {_name(key): value for key, value in known.items() if _is_number(value)}
        if numbers:
            payload["numbers"] = numbers
    return payload


def words_of(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield a word for each key that has a value, and one for each of its values."""
    for key, value in metadata.items():
        yield _has(key)
        values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        for each in values:
            yield _word(key, each)


def filter_of(where: Sequence[Condition]) -> dict[str, list[Any]]:
    """Return conditions as a filter; ``ConfigError`` for what Qdrant cannot compare."""
    made: dict[str, list[Any]] = {"must": [], "must_not": []}
    for key, operator, values in where:
        if operator in ("any", "not"):
            made["must" if operator == "any" else "must_not"].append(_either(key, values))
            continue
        value = values[0]
        if not _is_number(value):
            raise ConfigError(
                f"where.{key}: {operator} {value!r:.60}; Qdrant orders numbers and no texts: "
                "filter by equality, or by a number"
            )
        made["must"].append({"key": f'numbers."{_name(key)}"', "range": {operator: float(value)}})
    return made


def rows_from(row: int) -> dict[str, list[Any]]:
    """Return the filter of the rows from ``row`` on."""
    return {"must": [{"key": "row", "range": {"gte": float(row)}}]}


def _either(key: str, values: Sequence[Any]) -> dict[str, Any]:
    words = [_word(key, value) for value in values if value is not None]
    equal = {"key": "equals", "match": {"any": words}}
    if None not in values:
        return equal
    absent = {"must_not": [{"key": "equals", "match": {"any": [_has(key)]}}]}
    return {"should": [equal, absent]} if words else absent


def _word(key: str, value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps([key, value], ensure_ascii=False)


def _has(key: str) -> str:
    return json.dumps([key], ensure_ascii=False)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _name(key: str) -> str:
    """Return a key as a path inside quotes may have it."""
    return re.sub("[^A-Za-z0-9_]", lambda found: f"%{ord(found[0]):X};", key)
