"""Conditions on metadata, as a database is queried: what ``where`` of a search becomes."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

Operator: TypeAlias = Literal["any", "not", "gte", "gt", "lte", "lt"]


class Condition(NamedTuple):
    """One condition on a key of the metadata; orders have one value. All conditions must hold.

    ``any`` is equality with one of the values: of numbers as numbers, integer or float, where a
    boolean does not count as one; a list of texts equals each of its texts; None matches a missing
    value. ``not`` is its negation, missing values included. ``gte``, ``gt``, ``lte`` and ``lt``
    hold for a number and a number, or a text and a text by code point, and never for a missing
    value.
    """

    key: str
    operator: Operator
    values: tuple[Any, ...]
