"""The planner chooses an engine by the expected work; and the one that reads all, by term."""

# mypy: disable-error-code="arg-type, assignment, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from typing import Any

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
    SCORED,
    SPENT,
    TERMS,
    TERMS_COST,
)
from sluice.indexing.inverted.segments.segment import (
    FLOOR_RANKS,
    GROUP,
    LAST_ROW,
    RUNS_PER_TILE_BITS,
    TILE,
    TILE_BITS,
    Segment,
)
from sluice.indexing.inverted.segments.table import segment_at
from sluice.indexing.kernels.ranking import (
    LARGEST_BITS,
    ascending,
    bits_of,
    key_of,
    put,
    row_of,
    score_of,
    select_largest,
)

STRIP = 64  # sums compared with the threshold at a time
CHUNK = 1024  # postings whose products are made at a time
SMALLEST_POOL = 256
_UNTOUCHED = np.float32(-0.0)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def search_terms(
    first_run: NDArray[np.int64],
    run_numbers: NDArray[np.uint16],
    run_starts: NDArray[np.uint32],
    offsets: NDArray[np.uint16],
    impacts: NDArray[np.float32],
    impact_codes: NDArray[np.uint8],
    scales: NDArray[np.float32],
    order: NDArray[np.uint32],
    documents: int,
    first_row: int,
    allowed: NDArray[np.bool_],
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    bar: int,
    heap: NDArray[np.int64],
    size: int,
) -> int:
    """Offer every document that shares a term to the heap; return the heap's new size.

    A score is the float32 sum over the shared terms in ascending order, each product rounded to
    float32. Keys that are not above ``bar`` are left out.
    """
    # -0.0 marks a document no term has touched: adding a product, even +0.0, clears the sign bit,
    # and -0.0 + x is x exactly.
    sums = np.empty(TILE, dtype=np.float32)
    sums[: min(TILE, documents)] = _UNTOUCHED
    bits = sums.view(np.int32)
    products = np.empty(CHUNK, dtype=np.float32)
    # Keys above the bar are pooled, and a full pool is thinned: cheaper than a heap's steps.
    k = len(heap)
    room = min(4 * k, size + documents + 1)  # the latter is never full
    pool = np.empty(max(room, SMALLEST_POOL), dtype=np.int64)
    put(pool, heap[:size])
    if size == k:
        bar = max(bar, heap[0])
    cursors = np.empty(len(terms), dtype=np.int64)
    for j in range(len(terms)):
        cursors[j] = first_run[terms[j]]
    for base in range(0, documents, TILE):
        tile = base >> TILE_BITS
        touched = False
        for j in range(len(terms)):
            run, end = cursors[j], first_run[terms[j] + 1]
            begin = min(np.int64(run_starts[run]), len(offsets))
            while run < end and np.int64(run_numbers[run]) >> RUNS_PER_TILE_BITS == tile:
                run += 1
            cursors[j] = run
            stop = min(np.int64(run_starts[run]), len(offsets))
            if stop > begin:
                touched = True
                for first in range(begin, stop, CHUNK):
                    last: Any = min(first + CHUNK, stop)
                    part = products[: last - first]
                    if len(impacts):
                        _multiply(weights[j], impacts[first:last], part)
                    else:
                        _decode(weights[j], scales[terms[j]], impact_codes[first:last], part)
                    _accumulate(sums, offsets[first:last], part)
        if touched:
            count = min(TILE, documents - base)
            size, bar = _collect(
                sums, bits, base, count, order, first_row, allowed, bar, k, pool, size
            )
    if size > k:
        size, bar = _thinned(k, pool, size, bar)
    put(heap, ascending(pool[:size]))  # ascending: a heap
    return size


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _multiply(
    weight: np.float32, impacts: NDArray[np.float32], products: NDArray[np.float32]
) -> None:
    for i in range(len(products)):
        products[i] = weight * impacts[i]


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _decode(
    weight: np.float32,
    scale: np.float32,
    codes: NDArray[np.uint8],
    products: NDArray[np.float32],
) -> None:
    for i in range(len(products)):
        products[i] = weight * (scale * np.float32(codes[i]))


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _accumulate(
    sums: NDArray[np.float32], places: NDArray[np.uint16], products: NDArray[np.float32]
) -> None:
    """Add one term's products; places are distinct, so four may be under way at once."""
    count = len(places)
    whole = count - count % 4
    for i in range(0, whole, 4):
        a, b, c, d = places[i], places[i + 1], places[i + 2], places[i + 3]
        x = sums[a] + products[i]
        y = sums[b] + products[i + 1]
        z = sums[c] + products[i + 2]
        w = sums[d] + products[i + 3]
        sums[a], sums[b], sums[c], sums[d] = x, y, z, w
    for i in range(whole, count):
        sums[places[i]] += products[i]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _collect(
    sums: NDArray[np.float32],
    bits: NDArray[np.int32],
    base: int,
    count: int,
    order: NDArray[np.uint32],
    first_row: int,
    allowed: NDArray[np.bool_],
    bar: int,
    k: int,
    pool: NDArray[np.int64],
    size: int,
) -> tuple[int, int]:
    """Put a tile's keys above the bar into the pool; return its size and the bar.

    A full pool is thinned to the k best. The tile's sums are reset.
    """
    ordered = len(order) > 0
    for start in range(0, count, STRIP):
        stop = min(start + STRIP, count)
        highest = np.int32(-1)
        for i in range(start, stop):
            highest = max(highest, min(bits[i], LARGEST_BITS))
        lowest_row = first_row if ordered else first_row + base + start
        if highest >= 0 and key_of(highest, lowest_row) > bar:
            for i in range(start, stop):
                score = min(bits[i], LARGEST_BITS)
                if score >= bar >> 32 and score >= 0:
                    place: Any = base + i
                    row: Any = first_row + place
                    if ordered:
                        row = first_row + min(np.int64(order[place]), LAST_ROW)
                    key = key_of(score, row)
                    if key > bar and (len(allowed) == 0 or (row < len(allowed) and allowed[row])):
                        pool[size] = key
                        size += 1
                        if size == len(pool):
                            size, bar = _thinned(k, pool, size, bar)
    sums[:count] = _UNTOUCHED
    return size, bar


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _thinned(k: int, pool: NDArray[np.int64], size: int, bar: int) -> tuple[int, int]:
    """Keep a pool's k best keys; return its size and the bar, the smallest of them."""
    return k, max(bar, select_largest(pool[:size], k))


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
            query_starts, query_terms, query_weights, first, last, heaps, sizes, work,
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
                bound_cost += BOUND * blocks
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
            before = record[SCORED]
            size, low = search_blocks(
                segment, first_row, allowed, terms, weights, exact, np.float32(alpha),
                budget, bar, heap, sizes[query - first], record,
            )  # fmt: skip
            record[SPENT] += np.int64(bound_cost + (record[SCORED] - before) * block_cost)
            if record[GAVE_UP] == 0:
                sizes[query - first] = size
            else:
                choice, bar = TERMS, max(bar, low)
                record[GAVE_UP] = 0
        record[ENGINE] |= choice
        if choice == TERMS:
            record[SPENT] += np.int64(terms_cost)
            sizes[query - first] = search_terms(
                segment.first_run, segment.run_numbers, segment.run_starts, segment.offsets,
                segment.impacts, segment.impact_codes, segment.scales, segment.order, documents,
                first_row, allowed, terms, weights, bar, heap, sizes[query - first],
            )  # fmt: skip
