"""The protocol of query transforms: a query's text to texts with weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.numbers import finite_number


class Variant(NamedTuple):
    """A text to search by in the place of a query, and how much it counts.

    With ``document`` it is written like a document, and a dense encoder encodes it as one.
    """

    text: str
    weight: float = 1.0
    document: bool = False


class QueryTransform(Protocol):
    """Turns queries into what is searched in their place."""

    def variants(self, queries: Sequence[str]) -> Sequence[Iterable[Variant]]:
        """Return each query's variants; none where the query is searched as it is."""
        ...


class Each:
    """The transform of a function from one text to (text, weight) pairs."""

    def __init__(self, function: Callable[[str], Iterable[tuple[str, float]]]) -> None:
        self.function = function

    def variants(self, queries: Sequence[str]) -> list[list[Variant]]:
        """Return what the function says for each query."""
        return [[Variant(*pair) for pair in self.function(query)] for query in queries]


def merged(query: str, variants: Iterable[Variant], name: str) -> list[Variant]:
    """Return variants without blank ones and those of weight 0, equal ones as one.

    A query without any variant is its own. Raises ``DataError`` for what is not text, and
    ``ConfigError`` for a weight that is not a finite number, 0 or more.
    """
    weights: dict[tuple[str, bool], float] = {}
    for text, weight, document in variants:
        if not isinstance(text, str):
            raise DataError(f"{name}: {text!r:.60} for query {query!r:.60}; expected text")
        own = finite_number(weight, f"{name}: weight", 0)
        if text.strip() and own > 0:
            weights[text, document] = weights.get((text, document), 0.0) + own
    if not weights:
        return [Variant(query)]
    return [Variant(text, weight, document) for (text, document), weight in weights.items()]
