"""Searches small indexes exactly in numpy, without loading compiled kernels."""

from __future__ import annotations

import numpy as np

from sluice.indexing.checks import Dense
from sluice.indexing.hits import Hits, best_first
from sluice.indexing.live_rows import Mask, Rows
from sluice.indexing.storage.exact_scores import Metric, norms_of, numpy_scores
from sluice.indexing.storage.rows import DenseRows


def search_in_numpy(
    held: DenseRows,
    metric: Metric,
    queries: Dense,
    k: int,
    allowed: Mask | None,
    places: Rows | None = None,
) -> Hits:
    """Return the best allowed documents of each query, bit for bit as ``FlatSearch`` does.

    ``places`` are the documents' rows, if they are not consecutive.
    """
    hits = Hits.missing(len(queries), k)
    rows = np.arange(len(held)) if allowed is None else np.flatnonzero(allowed)
    for place, (query, norm) in enumerate(zip(queries, norms_of(queries), strict=True)):
        parts = [numpy_scores(query, chunk[0], metric, norm, chunk[1]) for chunk in held.chunks()]
        scores = np.concatenate(parts)[rows] + np.float32(0)  # no -0.0
        best, scores = best_first(rows if places is None else places[rows], scores, k)
        hits.rows[place, : len(best)], hits.scores[place, : len(best)] = best, scores
    return hits
