"""Reads documents back from segments: for merging, exchange and explanations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sluice.indexing.inverted.segments.choice import kernels_for
from sluice.indexing.inverted.segments.segment import RUN_BITS, RUNS_PER_TILE_BITS, Segment
from sluice.indexing.inverted.spooling.spool import Spool

Sparse: TypeAlias = "sparse.csr_array[Any]"  # a text: scipy below 1.15 has no [Any]
RUNS_AT_ONCE = 1 << RUNS_PER_TILE_BITS


def stored_documents(segment: Segment, rows: NDArray[np.int64]) -> Sparse:
    """Return the impacts of rows of a segment (from 0), float32 ``[len(rows), terms]``."""
    places = rows
    if len(segment.order):
        inverse = np.empty(segment.documents, dtype=np.int64)
        inverse[segment.order] = np.arange(segment.documents)
        places = inverse[rows]
    runs, which = np.unique(places >> RUN_BITS, return_inverse=True)
    none: Any = sparse.csr_array((0, segment.terms), dtype=np.float32)
    back = np.empty(len(rows), dtype=np.int64)
    parts, done = [none], 0
    breaks = np.flatnonzero(np.diff(runs, prepend=-2) != 1).tolist()
    stretches = [
        (first, min(first + RUNS_AT_ONCE, last))
        for start, last in zip(breaks, [*breaks[1:], len(runs)], strict=True)
        for first in range(start, last, RUNS_AT_ONCE)
    ]
    for first, last in stretches:
        here = np.flatnonzero((which >= first) & (which < last))
        matrix = _gathered(segment, int(runs[first]), int(runs[last - 1]) + 1)
        parts.append(matrix[places[here] - (int(runs[first]) << RUN_BITS)])
        back[here] = np.arange(done, done + len(here))
        done += len(here)
    stacked: Sparse = sparse.vstack(parts, format="csr")
    return stacked if (back == np.arange(len(rows))).all() else stacked[back]


def streamed_documents(segment: Segment) -> Iterator[Sparse]:
    """Yield all documents of a segment in row order, a tile or less at a time."""
    if len(segment.order):
        spool = Spool()
        for chunk in _stretches(segment):
            spool.append(chunk)
        spool.terms = segment.terms
        yield from spool.reordered(np.argsort(segment.order)).matrices()
    else:
        yield from _stretches(segment)


def _stretches(segment: Segment) -> Iterator[Sparse]:
    runs = -(-segment.documents >> RUN_BITS)
    for first in range(0, runs, RUNS_AT_ONCE):
        yield _gathered(segment, first, min(first + RUNS_AT_ONCE, runs))


def _gathered(segment: Segment, first_run: int, last_run: int) -> Sparse:
    """Return the documents of the runs ``[first, last)``."""
    count = min(last_run << RUN_BITS, segment.documents) - (first_run << RUN_BITS)
    starts = np.zeros(count + 1, dtype=np.int64)
    by_term = (
        segment.first_run, segment.run_numbers, segment.run_starts, segment.offsets,
        segment.impacts, segment.impact_codes, segment.scales, first_run, last_run,
    )  # fmt: skip
    kernels = kernels_for(segment.postings)
    kernels.gather(*by_term, starts, np.empty(0, np.uint32), np.empty(0, np.float32))
    np.cumsum(starts, out=starts)
    terms = np.empty(int(starts[-1]), dtype=np.uint32)
    impacts = np.empty(len(terms), dtype=np.float32)
    if len(terms):
        kernels.gather(*by_term, starts.copy(), terms, impacts)
    shape = (count, segment.terms)
    matrix: Sparse = sparse.csr_array((impacts, terms.astype(np.int64), starts), shape=shape)
    matrix.has_canonical_format = True
    return matrix
