"""Searches a FAISS index among the allowed rows only, and fills the lines that are left short."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.indexing.checks import Dense
from sluice.indexing.faiss.engine import Engine, Neighbours
from sluice.indexing.hits import Mask
from sluice.indexing.index import Parameters

FETCHED = 1 << 22  # places of one over-fetched batch

# These were measured with 60,000 clustered vectors of 128 dimensions, k = 10, one thread, by
# ``scripts/bench_faiss_keep.py``; shares are of allowed rows, drawn at random.
BATCH = 16  # queries from which on a block of documents is scored by one matrix product

# A selector in a flat scan costs the matrix product: a batch takes 8 times longer than scoring the
# allowed rows, whatever their share (0.8: 1.58 against 0.19 ms a query). One query: even at 0.3.
SCAN_SHARE = 0.2
# Product quantisers scan fast, and over-fetching costs them little: PQ32x4fs takes 1.7 times as
# long as scoring 0.02 of the rows and 0.17 times as long as 0.05; in a batch 1.7 times at 0.1.
CODES_SHARE, CODES_BATCH_SHARE = 0.03, 0.1
# One query is scored with 8 rows in the time that a graph needs for one more candidate (share
# 0.02: 0.86 ms with 1,000 candidates, 0.10 ms for 1,200 rows); in a batch with 150.
GRAPH_ROWS, GRAPH_BATCH_ROWS = 8, 150
# Probed lists drop their other rows faster than the allowed ones can be collected: one query is
# scored with a tenth of the rows of its lists in the same time, in a batch with all.
LIST_ROWS, LIST_BATCH_ROWS = 0.1, 1.0

# HNSW16, efSearch 64: recall .99, .97, .57, .27, .07 at shares .1, .05, .02, .01, .002; with
# 2 k / share candidates .99, .99, .96, .94, .97.
BEAM = 2
# IVF256, nprobe 16: recall 1, .95, .84, .49 at shares .05, .02, .01, .002; with lists that hold
# 16 k allowed rows 1, .99, .99, 1.
PROBED = 16


def whole_search(engine: Engine, queries: Dense, k: int, params: Parameters) -> Neighbours:
    """Return the ``k`` nearest rows of each query, of at least ``k``.

    A walk over a graph ends when ``efSearch`` rows are nearer than the next, by when it may have
    met fewer than a larger ``k``; and to some rows no link leads. Its short lines are filled. Those
    of inverted files are not: ``nprobe`` says which lists are looked into.
    """
    nearest = engine.search(queries, k, params)
    if engine.traits.reach != "graph":
        return nearest
    return _filled(engine, queries, k, None, params, nearest)


def masked_search(
    engine: Engine, queries: Dense, k: int, allowed: Mask, params: Parameters
) -> Neighbours:
    """Return the ``k`` nearest allowed rows of each query, of at least ``k`` allowed ones.

    Few allowed rows are all scored where the type can read them back. Else a graph or the probed
    lists may hold too few for a query: it is then searched in all lists of an inverted file, or
    with ``efSearch`` ``k``, and if that is not enough, scored with every allowed row. Places stay
    -1 only where a type can do neither.
    """
    live, traits = int(np.count_nonzero(allowed)), engine.traits
    if traits.scores_stored and exact_pays(engine, k, live, len(queries), params, full=False):
        return engine.stored_best(queries, k, allowed)
    params = widened(engine, k, live, params)
    nearest = _selected(engine, queries, k, allowed, params)
    return _filled(engine, queries, k, allowed, params, nearest)


def _filled(
    engine: Engine,
    queries: Dense,
    k: int,
    allowed: Mask | None,
    params: Parameters,
    nearest: Neighbours,
) -> Neighbours:
    """Search again for the lines that have empty places, further; then score every row for them."""
    scores, rows = nearest
    short, traits = _short(rows), engine.traits
    further: dict[str, Any] = {}
    if "nprobe" in traits.parameters:
        further = {"nprobe": traits.lists, "max_codes": 0}
    elif "efSearch" in traits.parameters and params.get("efSearch", traits.beam) < k:
        further = {"efSearch": k}
    if len(short) and further:
        far = {**params, **further}
        again = (
            engine.search(queries[short], k, far)
            if allowed is None
            else _selected(engine, queries[short], k, allowed, far)
        )
        scores[short], rows[short] = again
        short = short[_short(rows[short])]
    if len(short):
        every = np.ones(engine.rows, np.bool_) if allowed is None else allowed
        with suppress(RuntimeError):  # a type that cannot give its vectors back
            scores[short], rows[short] = engine.stored_best(queries[short], k, every)
    return Neighbours(scores, rows)


def _short(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the lines that have empty places."""
    return np.flatnonzero((rows < 0).any(axis=1))


def _selected(
    engine: Engine, queries: Dense, k: int, allowed: Mask, params: Parameters
) -> Neighbours:
    """Search with the mask inside FAISS where the type takes selectors, else by over-fetching."""
    nearest = engine.selected(queries, k, allowed, params)
    if nearest is not None:
        return nearest
    engine.warn_once(
        "takes no selector; longer lists are fetched, then deleted and excluded rows are dropped"
    )
    return _filtered(engine, queries, k, allowed, params)


def _filtered(
    engine: Engine, queries: Dense, k: int, allowed: Mask, params: Parameters
) -> Neighbours:
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
            lines = zip(part, *engine.search(queries[part], fetch, params), strict=True)
            for query, line_scores, line_rows in lines:
                places = np.flatnonzero((line_rows >= 0) & allowed[line_rows])[:k]
                # A gap at the end of the line: this is all the query can reach.
                if len(places) == k or line_rows[-1] < 0 or fetch == len(allowed):
                    rows[query, : len(places)] = line_rows[places]
                    scores[query, : len(places)] = line_scores[places]
                else:
                    left.append(query)
        unfinished, fetch = np.asarray(left, dtype=np.int64), 4 * fetch
    return Neighbours(scores, rows)


def exact_pays(
    engine: Engine, k: int, live: int, queries: int, params: Parameters, *, full: bool
) -> bool:
    """Return whether scoring ``live`` rows is faster than a search that finds as much.

    ``full``: the float vectors are at hand, and need not be decoded from codes.
    """
    rows, traits = engine.rows, engine.traits
    batch = queries >= BATCH
    wide = widened(engine, k, live, params)
    if traits.reach == "graph":
        beam = max(int(wide.get("efSearch", traits.beam)), k)
        return live <= beam * (GRAPH_BATCH_ROWS if batch else GRAPH_ROWS)
    if traits.reach == "lists":
        reached = rows * int(wide.get("nprobe", traits.probes)) / traits.lists
        return live <= reached * (LIST_BATCH_ROWS if batch else LIST_ROWS)
    if traits.reach == "scan":
        product = batch and (full or traits.kind.startswith("IndexFlat"))
        return product or live <= SCAN_SHARE * rows
    return live <= rows * (CODES_BATCH_SHARE if batch else CODES_SHARE)


def widened(engine: Engine, k: int, live: int, params: Parameters) -> dict[str, Any]:
    """Return search parameters that reach among ``live`` rows about what they reach among all.

    A beam or number of probes is only raised: by the share of rows that are allowed, and no further
    than is needed for ``k`` good hits.
    """
    wide, traits = dict(params), engine.traits
    rows = max(engine.rows, 1)
    share = max(live, 1) / rows
    if traits.reach == "graph" and "efSearch" in traits.parameters:
        beam = max(int(params.get("efSearch", traits.beam)), k)
        enough = min(beam / share, BEAM * k / share, rows)
        if int(enough) > beam:
            wide["efSearch"] = int(enough)
    if "nprobe" in traits.parameters:
        probes = int(params.get("nprobe", traits.probes))
        enough = min(probes / share, PROBED * k * traits.lists / max(live, 1), traits.lists)
        if int(enough) > probes:
            wide["nprobe"] = int(enough)
    return wide
