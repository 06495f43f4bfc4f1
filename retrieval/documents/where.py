"""Filters documents by metadata: ``where={"lang": "en", "year": {"gte": 2020}}`` to row masks.

Every key must hold. A value means equality, a list any of its values, and a mapping is made of
``gte``, ``gt``, ``lte``, ``lt`` and ``not`` (neither the value nor any of a list). A list of texts
equals each of its texts; None matches a missing value. ``not`` also holds where the key has no
value, the orders hold only where it has one. Texts are ordered by code point. Numbers are compared
as numbers, integer or float; a boolean does not count as a number.

The key ``id`` is the document's own id, unless documents have metadata of that name.
``{"text": {"matches": PATTERN}}`` holds where a regular expression matches the document's own text,
see ``sluice.retrieval.documents.pattern``.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.indexing.databases.index import Condition as Condition, Operator
from sluice.retrieval.documents.columns import (
    COMMA_TOLD,
    DECIMAL_COMMA,
    Column,
    Kind,
    Mask,
    Words,
    damaged_column,
    kind_of,
    plain,
)

if TYPE_CHECKING:
    from sluice.retrieval.documents.store import DocumentStore

Where: TypeAlias = Mapping[str, Any]
ORDERS = ("gte", "gt", "lte", "lt")
ID = "id"
TEXT, MATCHES = "text", "matches"
# Which kinds of column a value is looked for in.
NUMBERS: tuple[Kind, ...] = ("integer", "float")
EQUAL: dict[Kind, tuple[Kind, ...]] = {
    "boolean": ("boolean",), "integer": NUMBERS, "float": NUMBERS, "text": ("text", "texts"),
}  # fmt: skip
ORDERED: dict[Kind, tuple[Kind, ...]] = {"integer": NUMBERS, "float": NUMBERS, "text": ("text",)}


def conditions(where: Where) -> tuple[Condition, ...]:
    """Return the conditions of a ``where``; ``ConfigError`` if it is malformed."""
    if not isinstance(where, Mapping):
        raise ConfigError(f"where: {where!r:.80}; expected a mapping, as in {{'lang': 'en'}}")
    return tuple(
        _condition(key, operator, value)
        for key, condition in where.items()
        for operator, value in _operators(key, condition)
    )


def _operators(key: Any, condition: Any) -> Iterable[tuple[str, Any]]:
    if not isinstance(key, str):
        raise ConfigError(f"where: key {key!r:.80}; expected the name of a metadata field")
    if not isinstance(condition, Mapping):
        return [("any", condition)]
    known = (*ORDERS, "not", MATCHES)
    for operator in condition:
        if operator not in known:
            raise ConfigError(
                f"where.{key}: unknown condition {operator!r}; known: {', '.join(known)}"
                f"{suggest(str(operator), known)}"
            )
    if not condition:
        raise ConfigError(f"where.{key}: no condition; expected one of {', '.join(known)}")
    return condition.items()


def _condition(key: str, operator: Any, value: Any) -> Condition:
    several = isinstance(value, Sequence | Set | np.ndarray) and not isinstance(value, str)
    values = tuple(map(plain, value)) if several else (plain(value),)
    if operator == MATCHES:
        if key != TEXT or not isinstance(value, str):
            fault = f"{value!r:.80}; expected where.{TEXT}, and one regular expression"
            raise ConfigError(f"where.{key}.{MATCHES}: {fault}")
        from sluice.retrieval.documents.pattern import check_pattern

        check_pattern(value, f"where.{TEXT}.{MATCHES}")
    for each in values:
        kind = kind_of(each)
        if operator in ORDERS and (several or kind not in ORDERED):
            raise ConfigError(
                f"where.{key}.{operator}: {value!r:.80}; expected one text or finite number"
            )
        if each is not None and kind not in EQUAL:
            raise ConfigError(
                f"where.{key}: {each!r:.80}; expected a text, a boolean, a finite number of 64 "
                "bits, None, or a list of such"
            )
    return Condition(key, operator, values)


def apart_from_ids(
    store: DocumentStore, where: Iterable[Condition]
) -> tuple[Mask | None, list[Condition]]:
    """Return the mask of the conditions on ids and texts, None without any, and the others.

    For a search that asks a database the others; errors as of ``matching_rows``.
    """
    mask: Mask | None = None
    own, others = _parted(store, where)
    for condition in own:
        matches = _of_own(store, condition)
        mask = matches if mask is None else mask & matches
    return mask, others


def _parted(
    store: DocumentStore, where: Iterable[Condition]
) -> tuple[list[Condition], list[Condition]]:
    """Return the conditions on ids and texts, and the others: keys and values are checked."""
    where = list(where)
    known = {key for _, columns in store.columns for key in columns}
    own = [c for c in where if c.operator == MATCHES or (c.key == ID and ID not in known)]
    others = [each for each in where if each not in own]
    if store.rows_total:
        _check(store, others)
    return own, others


def matching_rows(store: DocumentStore, where: Iterable[Condition]) -> Mask:
    """Return the mask over all rows of a store, those of deleted documents too.

    ``ConfigError`` for a key that no document has, and for a value of a kind that no document has
    under the key. A store without rows has no such errors.
    """
    own, where = _parted(store, where)
    parts = [np.zeros(0, dtype=np.bool_)]
    for documents, columns in store.columns:
        mask = np.ones(documents, dtype=np.bool_)
        for condition in where:
            try:
                mask &= _matching(condition, columns.get(condition.key, []), documents)
            except (IndexError, ValueError) as error:
                raise damaged_column(condition.key, error) from None
        parts.append(mask)
    matches: Mask = np.concatenate(parts)
    for condition in own:
        matches &= _of_own(store, condition)
    return matches


def _of_own(store: DocumentStore, condition: Condition) -> Mask:
    """Return the mask of a condition on ids or on texts."""
    if condition.operator != MATCHES:
        return _of_ids(store, condition)
    from sluice.retrieval.documents.pattern import matched

    return matched((each.text for each in store.all_rows()), condition.values[0])


def _of_ids(store: DocumentStore, condition: Condition) -> Mask:
    """Return the mask of the documents with, or with ``not`` without, one of some ids."""
    if condition.operator in ORDERS:
        raise ConfigError(
            f"where.{ID}.{condition.operator}: ids have no order; expected an id, a list of ids, "
            "or not"
        )
    names = [value for value in condition.values if isinstance(value, str)]
    if len(names) < len(condition.values):
        other = next(value for value in condition.values if not isinstance(value, str))
        raise ConfigError(f"where.{ID}: {other!r:.80}; ids are texts")
    rows = store.rows(names)
    mask = np.zeros(store.rows_total, dtype=np.bool_)
    mask[rows[rows >= 0]] = True
    return ~mask if condition.operator == "not" else mask


def _check(store: DocumentStore, where: Iterable[Condition]) -> None:
    kinds: dict[str, set[Kind]] = {}
    for _, columns in store.columns:
        for key, group in columns.items():
            kinds.setdefault(key, set()).update(column.kind for column in group)
    for key, operator, values in where:
        if key not in kinds:
            known = ", ".join(sorted(kinds)[:8]) or "none: the documents have no metadata"
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
                    f"{_told(store, key)}"
                )


def _told(store: DocumentStore, key: str) -> str:
    """Say of a key whose texts are numbers with a comma that they are."""
    columns = (each for _, columns in store.columns for each in columns.get(key, ()))
    words = next((each.words for each in columns if each.kind == "text" and each.words), None)
    return f"; {COMMA_TOLD}" if words and DECIMAL_COMMA.fullmatch(words[0]) else ""


def _looked_in(operator: str, kind: Kind) -> tuple[Kind, ...]:
    return ORDERED[kind] if operator in ORDERS else EQUAL[kind]


def _matching(condition: Condition, columns: Iterable[Column], documents: int) -> Mask:
    matches = np.zeros(documents, dtype=np.bool_)
    present = matches.copy()
    for column in columns:
        values = [
            value
            for value in condition.values
            if (kind := kind_of(value)) and column.kind in _looked_in(condition.operator, kind)
        ]
        matches |= column.spread(_matches(column, condition.operator, values))
        present |= column.present()
    if None in condition.values:
        matches |= ~present
    return ~matches if condition.operator == "not" else matches


def _matches(column: Column, operator: Operator, values: list[Any]) -> Mask:
    """Return which of a column's own documents match; the values are of its kind."""
    if column.words is not None:
        return _matching_words(column, column.words, operator, values)
    matches = np.zeros(len(column.values), dtype=np.bool_)
    for value in values:
        if operator == "gte":
            matches |= column.values >= value
        elif operator == "gt":
            matches |= column.values > value
        elif operator == "lte":
            matches |= column.values <= value
        elif operator == "lt":
            matches |= column.values < value
        else:
            matches |= column.values == value
    return matches


def _matching_words(column: Column, words: Words, operator: Operator, values: list[str]) -> Mask:
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
    matches: Mask = chosen[column.values]
    if column.ends is None:
        return matches
    matching = np.zeros(len(column.ends) - 1, dtype=np.bool_)
    matching[np.searchsorted(column.ends, np.flatnonzero(matches), side="right") - 1] = True
    return matching


SYMBOLS = {">=": "gte", ">": "gt", "<=": "lte", "<": "lt", "!=": "not", "==": None, "=": None}
SYMBOL = re.compile("|".join(sorted(SYMBOLS, key=len, reverse=True)))


def parse_where(texts: Iterable[str]) -> dict[str, Any]:
    """Return the ``where`` of conditions on the command line, all of which must hold.

    A value is read as JSON (a number, ``true``, ``null``, a list, a ``"text"``), and as plain text
    if it is not JSON. Raises ``ConfigError`` for a malformed condition.
    """
    where: dict[str, Any] = {}
    for text in texts:
        key, operator, value = _parsed(text)
        if operator is None and key not in where:
            where[key] = value
        elif operator is not None and isinstance(where.setdefault(key, {}), dict):
            if operator in where[key]:
                raise ConfigError(f"--where {text}: {key!r} already has that condition")
            where[key][operator] = value
        else:
            raise ConfigError(
                f"--where {text}: {key!r} has another condition, and all must hold; for any of "
                f'several values write {key}=["a","b"]'
            )
    conditions(where)
    return where


def _parsed(text: str) -> tuple[str, str | None, Any]:
    symbol = SYMBOL.search(text)
    key = text[: symbol.start()].strip() if symbol else ""
    if symbol is None or not key or "!" in key:
        raise ConfigError(
            f"--where {text!r:.200}: expected KEY=VALUE, or with one of {' '.join(SYMBOLS)} "
            "between them"
        )
    value = text[symbol.end() :].strip()
    try:
        parsed = json.loads(value, parse_constant=str)  # NaN and Infinity are read as text
    except (ValueError, RecursionError):
        parsed = value
    if isinstance(parsed, dict):
        raise ConfigError(f"--where {text}: an object; expected a text, a number, or a list")
    return key, SYMBOLS[symbol[0]], parsed
