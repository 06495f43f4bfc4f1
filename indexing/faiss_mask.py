"""Searching a FAISS index among the allowed rows only."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from indexing.faiss_structure import parts, search_parameters
from indexing.live import Mask
from indexing.vectors import Dense

FETCHED = 1 << 22  # places of one over-fetched batch
STORED_BLOCK = 65_536  # vectors read back at a time

Found = tuple[Dense, NDArray[np.int64]]  # scores and rows [n, k], as FAISS returns them


def masked_search(
    index: Any, queries: Dense, k: int, allowed: Mask, given: Mapping[str, Any]
) -> Found:
    """Return the ``k`` nearest allowed rows of each query, of at least ``k`` allowed ones.

    A graph or the probed lists may hold too few allowed rows for a query. It is then searched in
    all lists of an inverted file, and if that is not enough, scored with every allowed row. Places
    stay -1 only where a type can do neither.
    """
    scores, rows = _selected(index, queries, k, allowed, given)
    short = _short(rows)
    lists = [part.nlist for part in parts(index) if isinstance(part, faiss.IndexIVF)]
    if lists and len(short):
        everywhere = {**given, "nprobe": max(lists), "max_codes": 0}
        scores[short], rows[short] = _selected(index, queries[short], k, allowed, everywhere)
        short = short[_short(rows[short])]
    if len(short):
        with suppress(RuntimeError):  # a type that cannot give its vectors back
            scores[short], rows[short] = _scored(index, queries[short], k, allowed)
    return scores, rows


def _short(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the lines that have empty places."""
    return np.flatnonzero((rows < 0).any(axis=1))


def _selected(index: Any, queries: Dense, k: int, allowed: Mask, given: Mapping[str, Any]) -> Found:
    """Search with the mask inside FAISS where the type takes selectors, else by over-fetching."""
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
                if len(places) == k or line_rows[-1] < 0 or fetch == index.ntotal:
                    rows[query, : len(places)] = line_rows[places]
                    scores[query, : len(places)] = line_scores[places]
                else:
                    left.append(query)
        unfinished, fetch = np.asarray(left, dtype=np.int64), 4 * fetch
    return scores, rows


def _scored(index: Any, queries: Dense, k: int, allowed: Mask) -> Found:
    """Score the allowed rows, as stored, one and all; the last part of ``index`` has them."""
    part = faiss.downcast_index(index)
    while isinstance(part, faiss.IndexPreTransform):  # scores are those of transformed vectors
        for place in range(part.chain.size()):
            queries = part.chain.at(place).apply(queries)
        part = faiss.downcast_index(part.index)
    best = faiss.ResultHeap(len(queries), k, part.metric_type == faiss.METRIC_INNER_PRODUCT)
    candidates = np.flatnonzero(allowed)
    for start in range(0, len(candidates), STORED_BLOCK):
        rows = candidates[start : start + STORED_BLOCK]
        scores, places = faiss.knn(queries, _stored(part, rows), k, part.metric_type)
        best.add_result(scores, np.where(places < 0, -1, rows[places]))
    best.finalize()
    return best.D, best.I


def _stored(index: Any, rows: NDArray[np.int64]) -> Dense:
    """Return the vectors of ascending ``rows``, decoded."""
    try:
        vectors: Dense = index.reconstruct_batch(rows)
    except RuntimeError:  # an inverted file finds single rows no faster than all of a range
        first, count = int(rows[0]), int(rows[-1] - rows[0]) + 1
        vectors = index.reconstruct_n(first, count)[rows - first]
    return vectors
