"""Filters on metadata: ``where={"lang": "en", "year": {"gte": 2020}}`` to a mask over rows.

Every key must hold. A value means equality, a list any of its values, and a mapping is made of
``gte``, ``gt``, ``lte``, ``lt`` and ``not`` (neither the value nor any of a list). A list of texts
equals each of its texts; None stands for no value. ``not`` also holds where the key has no value,
the orders hold only where it has one. Texts are ordered by code point. Numbers are compared as
numbers, whichever of the two kinds they are; a boolean is no number.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.retrieval.documents.columns import Column, Kind, Mask, Words, kind_of, plain

if TYPE_CHECKING:
    from sluice.retrieval.documents.store import DocumentStore

Where: TypeAlias = Mapping[str, Any]
Operator: TypeAlias = Literal["any", "not", "gte", "gt", "lte", "lt"]
ORDERS = ("gte", "gt", "lte", "lt")
# Which kinds of column a value is looked for in.
NUMBERS: tuple[Kind, ...] = ("integer", "float")
EQUAL: dict[Kind, tuple[Kind, ...]] = {
    "boolean": ("boolean",), "integer": NUMBERS, "float": NUMBERS, "text": ("text", "texts"),
}  # fmt: skip
ORDERED: dict[Kind, tuple[Kind, ...]] = {"integer": NUMBERS, "float": NUMBERS, "text": ("text",)}


class Condition(NamedTuple):
    """One condition on a key; orders have one value."""

    key: str
    operator: Operator
    values: tuple[Any, ...]


def conditions(where: Where) -> tuple[Condition, ...]:
    """Return the conditions of a ``where``; ``ConfigError`` for what is none."""
    if not isinstance(where, Mapping):
        raise ConfigError(f"where: {where!r:.80}; expected a mapping, as in {{'lang': 'en'}}")
    return tuple(
        _condition(key, operator, value)
        for key, wanted in where.items()
        for operator, value in _operators(key, wanted)
    )


def _operators(key: Any, wanted: Any) -> Iterable[tuple[str, Any]]:
    if not isinstance(key, str):
        raise ConfigError(f"where: key {key!r:.80}; expected the name of a metadata field")
    if not isinstance(wanted, Mapping):
        return [("any", wanted)]
    known = (*ORDERS, "not")
    for operator in wanted:
        if operator not in known:
            raise ConfigError(
                f"where.{key}: unknown condition {operator!r}; known: {', '.join(known)}"
                f"{suggest(str(operator), known)}"
            )
    if not wanted:
        raise ConfigError(f"where.{key}: no condition; expected one of {', '.join(known)}")
    return wanted.items()


def _condition(key: str, operator: Any, wanted: Any) -> Condition:
    several = isinstance(wanted, Sequence | Set | np.ndarray) and not isinstance(wanted, str)
    values = tuple(map(plain, wanted)) if several else (plain(wanted),)
    for value in values:
        kind = kind_of(value)
        if operator in ORDERS and (several or kind not in ORDERED):
            raise ConfigError(
                f"where.{key}.{operator}: {wanted!r:.80}; expected one text or finite number"
            )
        if value is not None and kind not in EQUAL:
            raise ConfigError(
                f"where.{key}: {value!r:.80}; expected a text, a boolean, a finite number of 64 "
                "bits, None, or a list of such"
            )
    return Condition(key, operator, values)


def matching_rows(store: DocumentStore, wanted: Iterable[Condition]) -> Mask:
    """Return the mask over all rows of a store, those of deleted documents too.

    ``ConfigError`` for a key that no document has, and for a value of a kind that no document has
    under the key. A store without rows has no such errors.
    """
    wanted = list(wanted)
    if store.rows_total:
        _check(store, wanted)
    parts = [np.zeros(0, dtype=np.bool_)]
    for documents, columns in store.columns:
        mask = np.ones(documents, dtype=np.bool_)
        for condition in wanted:
            mask &= _matching(condition, columns.get(condition.key, []), documents)
        parts.append(mask)
    return np.concatenate(parts)


def _check(store: DocumentStore, wanted: Iterable[Condition]) -> None:
    kinds: dict[str, set[Kind]] = {}
    for _, columns in store.columns:
        for key, group in columns.items():
            kinds.setdefault(key, set()).update(column.kind for column in group)
    for key, operator, values in wanted:
        if key not in kinds:
            known = ", ".join(sorted(kinds)[:8]) or "none: the documents came without metadata"
            raise ConfigError(
                f"where: no document of {store.path} has {key!r} (known: {known})"
                f"{suggest(key, kinds)}"
            )
        for value in values:
            kind = kind_of(value)
            if kind is not None and kinds[key].isdisjoint(_looked_in(operator, kind)):
                raise ConfigError(
                    f"where.{key}: {value!r:.80} is {kind}, the documents of {store.path} have "
                    f"{' or '.join(sorted(kinds[key]))} there"
                    f"{'' if operator not in ORDERS else f', for {operator!r}'}"
                )


def _looked_in(operator: str, kind: Kind) -> tuple[Kind, ...]:
    return ORDERED[kind] if operator in ORDERS else EQUAL[kind]


def _matching(condition: Condition, columns: Iterable[Column], documents: int) -> Mask:
    found = np.zeros(documents, dtype=np.bool_)
    present = found.copy()
    for column in columns:
        values = [
            value
            for value in condition.values
            if (kind := kind_of(value)) and column.kind in _looked_in(condition.operator, kind)
        ]
        found |= column.spread(_found(column, condition.operator, values))
        present |= column.present()
    if None in condition.values:
        found |= ~present
    return ~found if condition.operator == "not" else found


def _found(column: Column, operator: Operator, values: list[Any]) -> Mask:
    """Return which of a column's own documents match; the values are of its kind."""
    if column.words is not None:
        return _found_words(column, column.words, operator, values)
    found = np.zeros(len(column.values), dtype=np.bool_)
    for value in values:
        if operator == "gte":
            found |= column.values >= value
        elif operator == "gt":
            found |= column.values > value
        elif operator == "lte":
            found |= column.values <= value
        elif operator == "lt":
            found |= column.values < value
        else:
            found |= column.values == value
    return found


def _found_words(column: Column, words: Words, operator: Operator, values: list[str]) -> Mask:
    chosen = np.zeros(len(words), dtype=np.bool_)
    for value in values:
        first, stop = bisect_left(words, value), bisect_right(words, value)
        if operator == "gte":
            chosen[first:] = True
        elif operator == "gt":
            chosen[stop:] = True
        elif operator == "lte":
            chosen[:stop] = True
        elif operator == "lt":
            chosen[:first] = True
        else:
            chosen[first:stop] = True
    found: Mask = chosen[column.values]
    if column.ends is None:
        return found
    matching = np.zeros(len(column.ends) - 1, dtype=np.bool_)
    matching[np.searchsorted(column.ends, np.flatnonzero(found), side="right") - 1] = True
    return matching


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
