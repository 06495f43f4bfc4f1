"""A collection in memory that answers as Qdrant may: exactly, with ties in no order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sluice.indexing.databases.qdrant.collection import (
    Answer,
    Collection,
    Filter,
    Shape,
    query_values,
)

STORED: dict[str, dict[int, tuple[Any, dict[str, Any]]]] = {}


def holds(chosen: Filter, row: int, payload: Mapping[str, Any]) -> bool:
    """Qdrant's documented rules for a filter: all of must, one of should, none of must_not."""
    must = all(_one(each, row, payload) for each in chosen.get("must", ()))
    none = not any(_one(each, row, payload) for each in chosen.get("must_not", ()))
    should = chosen.get("should", ())
    return must and none and (not should or any(_one(each, row, payload) for each in should))


def _one(each: Mapping[str, Any], row: int, payload: Mapping[str, Any]) -> bool:
    if "has_id" in each:
        return row in each["has_id"]
    if "key" not in each:
        return holds(each, row, payload)
    value: Any = payload
    for step in each["key"].replace('"', "").split(".", 1):
        value = value.get(step) if isinstance(value, Mapping) else None
    if "match" in each:
        return bool(set(value or ()) & set(each["match"]["any"]))
    signs = {"gte": np.greater_equal, "gt": np.greater, "lte": np.less_equal, "lt": np.less}
    return value is not None and all(
        bool(signs[sign](value, bound)) for sign, bound in each["range"].items()
    )


class MemoryCollection(Collection):
    """Every query against every point; equal scores are shuffled."""

    upserts = 0

    @property
    def _points(self) -> dict[int, tuple[Any, dict[str, Any]]]:
        return STORED[self.name]

    def create(self, shape: Shape) -> None:
        """Make it."""
        STORED[self.name] = {}

    def drop(self) -> None:
        """Remove it."""
        STORED.pop(self.name, None)

    def upsert(self, rows: Any, vectors: Any, payloads: Sequence[Mapping[str, Any]]) -> None:
        """Store points."""
        type(self).upserts += 1
        kind = "sparse" if hasattr(vectors, "indptr") else "dense"
        for row, value, payload in zip(
            rows.tolist(), query_values(kind, vectors), payloads, strict=True
        ):
            self._points[row] = (value, dict(payload))

    def delete(self, chosen: Filter) -> None:
        """Delete points."""
        for row in [
            row for row, (_, payload) in self._points.items() if holds(chosen, row, payload)
        ]:
            del self._points[row]

    def count(self, chosen: Filter) -> int:
        """Count points."""
        return sum(holds(chosen, row, payload) for row, (_, payload) in self._points.items())

    def points(self, rows: Any, *, vectors: bool) -> dict[int, tuple[Any, Mapping[str, Any]]]:
        """Look points up."""
        return {row: self._points[row] for row in rows.tolist() if row in self._points}

    def nearest(
        self, kind: Any, queries: Any, limit: int, chosen: Filter, ef: int | None
    ) -> list[Answer]:
        """Score all of them."""
        draw = np.random.default_rng(limit)
        answers = []
        for query in query_values(kind, queries):
            rows, scores = [], []
            for row, (value, payload) in self._points.items():
                if not holds(chosen, row, payload):
                    continue
                if kind == "sparse":
                    own = dict(zip(*value, strict=True))
                    shared = [own[term] * weight for term, weight in zip(*query, strict=True)
                              if term in own]  # fmt: skip
                    if not shared:
                        continue
                    score = float(np.sum(shared))
                elif self.settings.metric == "l2":
                    score = float(np.linalg.norm(np.subtract(value, query)))
                else:
                    score = float(np.dot(value, query))
                rows.append(row)
                scores.append(score)
            sign = 1 if self.settings.metric == "l2" else -1
            order = np.lexsort((draw.random(len(rows)), sign * np.array(scores)))[:limit]
            answers.append(Answer([rows[at] for at in order], [scores[at] for at in order]))
        return answers

    def optimise(self) -> None:
        """Nothing to build."""

    @property
    def size_bytes(self) -> int:
        """Nothing on a disk."""
        return 0
