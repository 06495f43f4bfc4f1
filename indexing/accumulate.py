"""The search kernel of the inverted index: sum term by term, keep the k best in the same pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

TILE_BITS = 16
TILE = 1 << TILE_BITS  # documents summed at a time: 256 KB of sums stay in the cache
STRIP = 64  # sums compared with the threshold at a time

# A key orders hits by one int64: the score's bits, then the row reversed. The bits of a float32
# that is not negative, read as an integer, are in the order of the floats.
ROW_MASK = (1 << 32) - 1
LARGEST_BITS = np.int32(0x7F7FFFFF)  # of the largest float32; an overflow counts as it


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def search_range(
    starts: NDArray[np.int64],
    rows: NDArray[np.uint32],
    impacts: NDArray[np.float32],
    documents: int,
    allowed: NDArray[np.bool_],
    query_starts: NDArray[np.int64],
    query_terms: NDArray[np.int64],
    query_weights: NDArray[np.float32],
    first: int,
    last: int,
    rows_out: NDArray[np.int64],
    scores_out: NDArray[np.float32],
) -> None:
    """Search queries ``first`` to ``last`` (exclusive) and fill their lines of the outputs.

    A score is a float32 sum over the shared terms in ascending order, each product rounded to
    float32. ``allowed`` masks the documents, or is empty when all may be hits.
    """
    # -0.0 marks a document no term has touched: adding a product, even +0.0, clears the sign bit,
    # and -0.0 + x is x exactly.
    sums = np.full(TILE, np.float32(-0.0), dtype=np.float32)
    bits = sums.view(np.int32)
    k = rows_out.shape[1]
    heap = np.empty(k, dtype=np.int64)
    longest = 0
    for query in range(first, last):
        longest = max(longest, query_starts[query + 1] - query_starts[query])
    cursors = np.empty(longest, dtype=np.int64)
    for query in range(first, last):
        terms = query_terms[query_starts[query] : query_starts[query + 1]]
        weights = query_weights[query_starts[query] : query_starts[query + 1]]
        for j in range(len(terms)):
            cursors[j] = starts[terms[j]]
        size = 0
        for base in range(0, documents, TILE):
            end = min(base + TILE, documents)
            touched = False
            for j in range(len(terms)):
                begin = cursors[j]
                stop = _first_from(rows, begin, starts[terms[j] + 1], end)
                cursors[j] = stop
                if stop > begin:
                    touched = True
                    _accumulate(sums, rows[begin:stop], impacts[begin:stop], weights[j])
            if touched:
                size = _collect(sums, bits, base, end - base, allowed, heap, size)
        _sort_descending(heap, size)
        for place in range(size):
            key = heap[place]
            rows_out[query, place] = ROW_MASK - (key & ROW_MASK)
            scores_out[query, place] = _score(key)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _accumulate(
    sums: NDArray[np.float32],
    rows: NDArray[np.uint32],
    impacts: NDArray[np.float32],
    weight: np.float32,
) -> None:
    """Add one term's products; rows are distinct, so four may be under way at once."""
    tile = np.uint32(TILE - 1)  # the mask also keeps a damaged file inside the buffer
    count = len(rows)
    whole = count - count % 4
    for i in range(0, whole, 4):
        a, b = rows[i] & tile, rows[i + 1] & tile
        c, d = rows[i + 2] & tile, rows[i + 3] & tile
        x = sums[a] + weight * impacts[i]
        y = sums[b] + weight * impacts[i + 1]
        z = sums[c] + weight * impacts[i + 2]
        w = sums[d] + weight * impacts[i + 3]
        sums[a], sums[b], sums[c], sums[d] = x, y, z, w
    for i in range(whole, count):
        sums[rows[i] & tile] += weight * impacts[i]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _collect(
    sums: NDArray[np.float32],
    bits: NDArray[np.int32],
    base: int,
    count: int,
    allowed: NDArray[np.bool_],
    heap: NDArray[np.int64],
    size: int,
) -> int:
    """Offer a tile's sums to the heap and reset them; return the heap's new size.

    Rows ascend, so an equal score never enters a full heap: ties go to the lower row.
    """
    k = len(heap)
    worst = heap[0] >> 32 if size == k else np.int64(-1)
    for start in range(0, count, STRIP):
        stop = min(start + STRIP, count)
        highest = np.int32(-1)
        for i in range(start, stop):
            highest = max(highest, min(bits[i], LARGEST_BITS))
        if highest > worst:
            for i in range(start, stop):
                score = min(bits[i], LARGEST_BITS)
                if score > worst and (len(allowed) == 0 or allowed[base + i]):
                    key = (np.int64(score) << 32) | (ROW_MASK - (base + i))
                    if size < k:
                        _push(heap, size, key)
                        size += 1
                    else:
                        _sink(heap, size, key)
                    if size == k:
                        worst = heap[0] >> 32
    sums[:count] = np.float32(-0.0)
    return size


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _first_from(rows: NDArray[np.uint32], low: int, high: int, row: int) -> int:
    """Return the first place in ``[low, high)`` whose row is at least ``row``, else ``high``."""
    if high > low and rows[high - 1] < row:
        return high
    while low < high:
        middle = (low + high) >> 1
        if rows[middle] < row:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _push(heap: NDArray[np.int64], size: int, key: int) -> None:
    """Add a key to a min-heap that has room."""
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if heap[parent] <= key:
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = key


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _sink(heap: NDArray[np.int64], size: int, key: int) -> None:
    """Replace the smallest key of a min-heap."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = key


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _sort_descending(heap: NDArray[np.int64], size: int) -> None:
    """Sort a min-heap's keys, best first, by taking out the smallest again and again."""
    for last in range(size - 1, 0, -1):
        smallest, moved = heap[0], heap[last]
        _sink(heap, last, moved)
        heap[last] = smallest


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _score(key: int) -> Any:
    """Return the float32 whose bits are the key's upper half."""
    return np.int32(key >> 32).view(np.float32)
