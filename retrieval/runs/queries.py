"""Queries by id, and how deep they are searched unless a cut says otherwise."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

from sluice.encoders.foundation.errors import ConfigError

DEPTH = 1000  # how deep a retriever inside a pipeline searches when no cut says otherwise

Queries = Mapping[str, str]  # query id -> text
Asked: TypeAlias = Queries | Iterable[str]  # what callers may give: by id, or a list, a Series, ...


class SelfExcluding(dict[str, str]):
    """Queries that retrievers answer without the document whose id is the query's own.

    They return as many documents as for other queries. For datasets whose queries are documents
    (``Dataset.identical_ids``).
    """


class Unseen(dict[str, str]):
    """Queries that retrievers answer without the documents ``seen``, as many as for others."""

    def __init__(self, queries: Queries, seen: Collection[str]) -> None:
        super().__init__(queries)
        self.seen = frozenset(seen)

    def __reduce__(self) -> tuple[Any, ...]:
        return Unseen, (dict(self), self.seen)


def like(queries: Queries, texts: dict[str, str]) -> Queries:
    """Return texts that are searched as ``queries`` are: without the same documents."""
    if isinstance(queries, Unseen):
        return Unseen(texts, queries.seen)
    return SelfExcluding(texts) if isinstance(queries, SelfExcluding) else texts


def as_queries(asked: Asked) -> Queries:
    """Return queries by id: a mapping as it is, a Series by its index, others by their position.

    A frame has the columns ``query`` and, for ids, ``qid``. A list of texts gets the ids ``"0"``,
    ``"1"``, ...; a single text ``"0"``; (id, text) pairs, and mappings with ``qid`` and ``query``,
    have theirs. ``ConfigError`` for anything else, and for an id that occurs twice.
    """
    if isinstance(asked, Mapping):
        pairs: Iterable[tuple[Any, Any]] = asked.items()
        if all(isinstance(name, str) and isinstance(text, str) for name, text in pairs):
            return asked
        return _by_id(asked.items())
    if isinstance(asked, str):
        return {"0": asked}
    frame: Any = asked
    if hasattr(asked, "columns") and "query" in (names := list(asked.columns)):
        by = next((name for name in ("qid", "query_id", "_id", "id") if name in names), None)
        keys = frame[by] if by else range(len(frame))
        return _by_id(zip(keys, frame["query"], strict=True))
    if hasattr(asked, "columns"):
        raise ConfigError(
            f"queries: a {type(asked).__name__}; expected texts: give one column, as in "
            "run(frame['query'])"
        )
    items = getattr(asked, "items", None)
    if callable(items) and hasattr(asked, "index"):  # a pandas Series
        return _by_id(items())
    if not isinstance(asked, Iterable):
        raise ConfigError(
            f"queries: {asked!r:.80}; expected {{id: text}}, a list of texts, or one text"
        )
    rows: list[Any] = list(asked)
    if rows and all(isinstance(row, Mapping) and {"qid", "query"} <= row.keys() for row in rows):
        return _by_id((row["qid"], row["query"]) for row in rows)
    paired = bool(rows) and all(isinstance(row, tuple) and len(row) == 2 for row in rows)
    return _by_id(rows if paired else enumerate(rows))


def _by_id(pairs: Iterable[tuple[Any, Any]]) -> Queries:
    queries: dict[str, str] = {}
    for name, text in pairs:
        if not isinstance(text, str):
            raise ConfigError(f"queries: {text!r:.80} (query {name!r}); expected text")
        if str(name) in queries:
            raise ConfigError(f"queries: id {str(name)!r} occurs twice; expected one text each")
        queries[str(name)] = text
    return queries
