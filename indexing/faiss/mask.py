"""Searching a FAISS index among the allowed rows only."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from sluice.indexing.checks import Dense
from sluice.indexing.faiss.engine import Engine, Found, Given
from sluice.indexing.faiss.selectivity import exact_pays, widened
from sluice.indexing.live_rows import Mask

FETCHED = 1 << 22  # places of one over-fetched batch


def masked_search(engine: Engine, queries: Dense, k: int, allowed: Mask, given: Given) -> Found:
    """Return the ``k`` nearest allowed rows of each query, of at least ``k`` allowed ones.

    Few allowed rows are scored one and all where the type can read them back. Else a graph or the
    probed lists may hold too few for a query: it is then searched in all lists of an inverted file,
    and if that is not enough, scored with every allowed row. Places stay -1 only where a type can
    do neither.
    """
    kept = int(np.count_nonzero(allowed))
    if engine.scores_stored and exact_pays(engine, k, kept, len(queries), given, full=False):
        return engine.stored_best(queries, k, allowed)
    given = widened(engine, k, kept, given)
    scores, rows = _selected(engine, queries, k, allowed, given)
    short = _short(rows)
    if "nprobe" in engine.parameters and len(short):
        everywhere = {**given, "nprobe": engine.lists[0], "max_codes": 0}
        scores[short], rows[short] = _selected(engine, queries[short], k, allowed, everywhere)
        short = short[_short(rows[short])]
    if len(short):
        with suppress(RuntimeError):  # a type that cannot give its vectors back
            scores[short], rows[short] = engine.stored_best(queries[short], k, allowed)
    return Found(scores, rows)


def _short(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the lines that have empty places."""
    return np.flatnonzero((rows < 0).any(axis=1))


def _selected(engine: Engine, queries: Dense, k: int, allowed: Mask, given: Given) -> Found:
    """Search with the mask inside FAISS where the type takes selectors, else by over-fetching."""
    found = engine.selected(queries, k, allowed, given)
    if found is None:
        engine.say_once(
            "takes no selector; longer lists are fetched and the deleted and kept-out rows dropped"
        )
        return _filtered(engine, queries, k, allowed, given)
    return found


def _filtered(engine: Engine, queries: Dense, k: int, allowed: Mask, given: Given) -> Found:
    """Fetch ever more hits of the unfinished queries until ``k`` allowed ones are among them."""
    scores = np.zeros((len(queries), k), dtype=np.float32)
    rows = np.full((len(queries), k), -1, dtype=np.int64)
    share = np.count_nonzero(allowed) / len(allowed)
    unfinished, fetch = np.arange(len(queries)), int(1.25 * k / share) + k
    while len(unfinished):
        fetch = min(fetch, len(allowed))
        left = []
        step = max(1, FETCHED // fetch)
        for start in range(0, len(unfinished), step):
            part = unfinished[start : start + step]
            lines = zip(part, *engine.search(queries[part], fetch, given), strict=True)
            for query, line_scores, line_rows in lines:
                places = np.flatnonzero((line_rows >= 0) & allowed[line_rows])[:k]
                # A gap at the end of the line: this is all the query can reach.
                if len(places) == k or line_rows[-1] < 0 or fetch == len(allowed):
                    rows[query, : len(places)] = line_rows[places]
                    scores[query, : len(places)] = line_scores[places]
                else:
                    left.append(query)
        unfinished, fetch = np.asarray(left, dtype=np.int64), 4 * fetch
    return Found(scores, rows)
