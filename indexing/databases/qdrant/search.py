"""Searches a collection so that ties are ordered by row, at the boundary of k too."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sluice.indexing.databases.qdrant.collection import Answer, Collection, Filter
from sluice.indexing.databases.qdrant.settings import Kind
from sluice.indexing.hits import Hits
from sluice.indexing.live_rows import Mask, Rows
from sluice.indexing.storage.exact_scores import Metric

SPARE = 1  # points asked for beyond k: enough where no ties are cut; each costs the engine
FACTOR = 4  # by which more are asked for where some are


class Live(NamedTuple):
    """The rows of a state that may be hits: those below ``rows``, and of ``allowed`` if given."""

    rows: int
    allowed: Mask | None

    def holds(self, rows: Rows) -> Mask:
        """Return which of the rows may be hits."""
        known: Mask = rows < self.rows
        if self.allowed is not None:
            known[known] = self.allowed[rows[known]]
        return known


def nearest(
    collection: Collection,
    kind: Kind,
    metric: Metric,
    queries: Any,
    k: int,
    chosen: Filter,
    live: Live,
    ef: int | None,
) -> Hits:
    """Return the ``k`` best ``live`` rows of each query: score descending, then row ascending.

    Points of rows that are not live, as a change under way has, are passed over. ``ef`` None is
    exact. Sparse hits share a term with the query.
    """
    hits = Hits.missing(int(queries.shape[0]), k)
    waiting = np.arange(len(hits.rows))
    limit = k + SPARE
    while len(waiting):
        walk = None if ef is None else max(ef, limit)
        answers = collection.nearest(kind, queries[waiting], limit, chosen, walk)
        cut = []
        for place, answer in zip(waiting.tolist(), answers, strict=True):
            rows, scores = _kept(answer, live, kind, metric)
            if len(answer.rows) == limit and not _is_whole(answer, rows, scores, k, metric):
                cut.append(place)
                continue
            order = np.lexsort((rows, -scores))[:k]
            hits.rows[place, : len(order)] = rows[order]
            hits.scores[place, : len(order)] = scores[order]
        waiting = np.array(cut, dtype=np.int64)
        limit *= FACTOR
    return hits


def _kept(answer: Answer, live: Live, kind: Kind, metric: Metric) -> tuple[Any, Any]:
    rows = np.array(answer.rows, dtype=np.int64)
    scores = _scores(answer.scores, metric)
    kept = live.holds(rows)
    if kind == "sparse":
        kept &= scores > 0
    return rows[kept], scores[kept]


def _scores(values: Any, metric: Metric) -> Any:
    scores = np.array(values, dtype=np.float64)
    return (-(scores**2) if metric == "l2" else scores).astype(np.float32)


def _is_whole(answer: Answer, rows: Any, scores: Any, k: int, metric: Metric) -> bool:
    """Return whether the k-th kept row is better than the last point that was fetched."""
    if len(rows) < k:
        return False
    last = _scores(answer.scores[-1:], metric)[0]
    return bool(np.partition(scores, len(scores) - k)[len(scores) - k] > last)
