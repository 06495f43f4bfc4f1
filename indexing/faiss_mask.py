"""Searching a FAISS index among the allowed rows only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from indexing.faiss_structure import search_parameters
from indexing.live import Mask
from indexing.vectors import Dense

FETCHED = 1 << 22  # places of one over-fetched batch

Found = tuple[Dense, NDArray[np.int64]]  # scores and rows [n, k], as FAISS returns them


def masked_search(
    index: Any, queries: Dense, k: int, allowed: Mask, given: Mapping[str, Any]
) -> Found:
    """Return the ``k`` nearest allowed rows of each query, -1 in places that stay empty.

    The mask works inside FAISS where the type takes selectors, else on more hits than asked for.
    """
    bits = np.packbits(allowed, bitorder="little")
    asked = search_parameters(index, given, faiss.IDSelectorBitmap(bits))
    try:
        scores, rows = index.search(queries, k, params=asked)
    except RuntimeError:  # "search params not supported for this index"
        return _filtered(index, queries, k, allowed, given)
    if not allowed[rows[rows >= 0]].all():  # a type that ignores selectors without saying so
        return _filtered(index, queries, k, allowed, given)
    return scores, rows


def _filtered(index: Any, queries: Dense, k: int, allowed: Mask, given: Mapping[str, Any]) -> Found:
    """Fetch ever more hits of the unfinished queries until ``k`` allowed ones are among them."""
    asked = search_parameters(index, given, None)
    scores = np.zeros((len(queries), k), dtype=np.float32)
    rows = np.full((len(queries), k), -1, dtype=np.int64)
    wanted = min(k, int(np.count_nonzero(allowed)))
    unfinished, fetch = np.arange(len(queries)), 2 * k
    while len(unfinished):
        fetch = min(fetch, index.ntotal)
        left = []
        step = max(1, FETCHED // fetch)
        for start in range(0, len(unfinished), step):
            part = unfinished[start : start + step]
            lines = zip(part, *index.search(queries[part], fetch, params=asked), strict=True)
            for query, line_scores, line_rows in lines:
                places = np.flatnonzero((line_rows >= 0) & allowed[line_rows])[:k]
                # A gap at the end of the line: this is all the query can reach.
                if len(places) >= wanted or line_rows[-1] < 0 or fetch == index.ntotal:
                    rows[query, : len(places)] = line_rows[places]
                    scores[query, : len(places)] = line_scores[places]
                else:
                    left.append(query)
        unfinished, fetch = np.asarray(left, dtype=np.int64), 4 * fetch
    return scores, rows
