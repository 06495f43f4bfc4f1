"""The exhaustive engine: term at a time over tiles that fit the cache, top-k in the same pass."""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sluice.indexing.inverted.segments.segment import LAST_ROW, RUNS_PER_TILE_BITS, TILE, TILE_BITS
from sluice.indexing.kernels.ordering import LARGEST_BITS, ascending, key_of, put, select_largest

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
