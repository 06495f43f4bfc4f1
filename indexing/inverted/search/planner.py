"""The planner: chooses an engine for each query and segment by the expected work."""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sluice.indexing.hits import MISSING_ROW, MISSING_SCORE
from sluice.indexing.inverted.search.block_engine import search_blocks
from sluice.indexing.inverted.search.record import (
    AUTO,
    BLOCKS,
    BLOCKS_COST,
    ENGINE,
    GAVE_UP,
    PLANNED,
    TERMS,
    TERMS_COST,
)
from sluice.indexing.inverted.search.term_engine import search_terms
from sluice.indexing.inverted.segments.segment import FLOOR_RANKS, GROUP, Segment
from sluice.indexing.inverted.segments.table import segment_at
from sluice.indexing.kernels.ordering import ascending, bits_of, row_of, score_of

# Costs in nanoseconds, fitted to 800 queries of the benchmark's 200,000 documents (easy and hard,
# k from 10 to 1,000; docs/experiments.md); only their ratios matter.
POSTING, DOCUMENT, TERM_HIT = 0.45, 0.65, 250.0  # by term: a posting, a document, one of k hits
BOUND, LISTED, GROUPED = 0.05, 0.9, 1.0  # a dense bound, a listed bound, a group to order
BLOCK, BLOCK_TERM = 100.0, 38.0  # scoring a block, and each query term in it
BLOCK_MISS, NEAR = 22.0, float(1 << 24)  # more of the latter for each doubling of these postings
BLOCK_HIT, EXACT_HIT = 200.0, 1500.0  # by block: one of k hits; in exact it is scored again
MOST_BLOCK_TERMS = 1 << 16  # of a query: beyond, the margin for rounding grows large
# Blocks that k hits take where pruning works well: 34 for 10, 80 for 100, 1,500 to 2,400 for 1,000.
BLOCKS_FOR_HITS = (20.0, 0.6, 0.0015)

_FIRST_RANK, _SECOND_RANK, _THIRD_RANK = FLOOR_RANKS


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def search_segments(
    tables: NDArray[np.int64],
    allowed: NDArray[np.bool_],
    exact: bool,
    engine: int,
    alpha: float,
    lazy_blocks: int,
    query_starts: NDArray[np.int64],
    query_terms: NDArray[np.int64],
    query_weights: NDArray[np.float32],
    first: int,
    last: int,
    rows: NDArray[np.int64],
    scores: NDArray[np.float32],
    work: NDArray[np.int64],
) -> None:
    """Search queries ``first`` to ``last`` (exclusive) and fill their lines of the outputs.

    ``tables`` are the segments (``segment_tables``). ``allowed`` masks the rows of the index, or is
    empty when all may be hits. Each line of ``work`` receives what was planned and done; missing
    places are filled last.
    """
    heaps = np.empty((last - first, rows.shape[1]), dtype=np.int64)
    sizes = np.zeros(last - first, dtype=np.int64)
    for place in range(len(tables)):
        _search_segment(
            segment_at(tables[place]), tables[place, 0], allowed, exact, engine, alpha,
            lazy_blocks, query_starts, query_terms, query_weights, first, last, heaps, sizes, work,
        )  # fmt: skip
    for query in range(first, last):
        heap, size = heaps[query - first], sizes[query - first]
        in_order = True  # as the engine by term leaves it
        for place in range(1, size):
            in_order &= heap[place - 1] <= heap[place]
        keys = heap[:size] if in_order else ascending(heap[:size])
        for place in range(size):
            key = keys[size - 1 - place]
            rows[query, place] = row_of(key)
            scores[query, place] = score_of(key)
        rows[query, size:] = MISSING_ROW
        scores[query, size:] = MISSING_SCORE


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _search_segment(
    segment: Segment,
    first_row: int,
    allowed: NDArray[np.bool_],
    exact: bool,
    engine: int,
    alpha: float,
    lazy_blocks: int,
    query_starts: NDArray[np.int64],
    query_terms: NDArray[np.int64],
    query_weights: NDArray[np.float32],
    first: int,
    last: int,
    heaps: NDArray[np.int64],
    sizes: NDArray[np.int64],
    work: NDArray[np.int64],
) -> None:
    """Offer the segment's documents to the heaps of queries ``first`` to ``last`` (exclusive).

    ``heaps`` and ``sizes`` have a line for each of these queries; the rest is as above.
    """
    k = heaps.shape[1]
    documents = segment.shape[0]
    width = len(segment.first_run) - 1
    blocks = len(segment.directory_starts) - 1
    lazy = blocks >= lazy_blocks
    for query in range(first, last):
        terms = query_terms[query_starts[query] : query_starts[query + 1]]
        weights = query_weights[query_starts[query] : query_starts[query + 1]]
        known = 0  # terms ascend, those beyond the segment's vocabulary come last
        while known < len(terms) and terms[known] < width:
            known += 1
        terms, weights = terms[:known], weights[:known]
        heap, record = heaps[query - first], work[query]
        postings, bound_cost = 0, GROUPED * blocks / GROUP
        floor = np.float32(0)
        for j in range(known):
            term = terms[j]
            postings += np.int64(segment.run_starts[segment.first_run[term + 1]]) - np.int64(
                segment.run_starts[segment.first_run[term]]
            )
            if segment.dense_rows[term] >= 0:
                bound_cost += BOUND * blocks / (GROUP if lazy else 1)
            else:
                bound_cost += LISTED * (segment.list_starts[term + 1] - segment.list_starts[term])
            if len(allowed) == 0 and k <= _THIRD_RANK:
                rank = 0 if k <= _FIRST_RANK else 1 if k <= _SECOND_RANK else 2
                floor = max(floor, weights[j] * segment.floors[rank, term])
        if postings == 0:
            continue
        # k documents of this segment score at least the floor, so no hit is below it.
        bar = (np.int64(bits_of(min(floor, np.float32(3.4e38)))) << 32) - 1
        far = np.log2(max(len(segment.offsets) / NEAR, 1.0))
        block_cost = BLOCK + (BLOCK_TERM + BLOCK_MISS * far) * known
        terms_cost = POSTING * postings + DOCUMENT * documents + TERM_HIT * k
        few, each, square = BLOCKS_FOR_HITS
        expected = min(few + each * k + square * k * k, np.float64(blocks))
        blocks_cost = bound_cost + expected * block_cost + k * (EXACT_HIT if exact else BLOCK_HIT)
        record[TERMS_COST] += np.int64(terms_cost)
        record[BLOCKS_COST] += np.int64(blocks_cost)
        choice = engine
        if engine == AUTO:
            choice = BLOCKS if blocks_cost < terms_cost else TERMS
        if blocks == 0 or known > MOST_BLOCK_TERMS:
            choice = TERMS
        record[PLANNED] = choice
        if choice == BLOCKS:
            budget = blocks if engine == BLOCKS else np.int64(terms_cost / block_cost)
            size, low = search_blocks(
                segment, first_row, allowed, terms, weights, exact, np.float32(alpha), lazy,
                budget, bar, heap, sizes[query - first], record,
            )  # fmt: skip
            if record[GAVE_UP] == 0:
                sizes[query - first] = size
            else:
                choice, bar = TERMS, max(bar, low)
                record[GAVE_UP] = 0
        record[ENGINE] |= choice
        if choice == TERMS:
            sizes[query - first] = search_terms(
                segment.first_run, segment.run_numbers, segment.run_starts, segment.offsets,
                segment.impacts, segment.impact_codes, segment.scales, segment.order, documents,
                first_row, allowed, terms, weights, bar, heap, sizes[query - first],
            )  # fmt: skip
