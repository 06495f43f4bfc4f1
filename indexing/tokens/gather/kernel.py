"""The compiled loops of the centroid gather: best centroids, then sums over their lists."""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sluice.indexing.kernels.ranking import ascending

BINS = 2048  # of sums, to find those among the best without sorting all
UNSEEN = np.int32(-1)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def best_centroids(products: NDArray[np.float32], count: int, chosen: NDArray[np.int32]) -> None:
    """Write the ``count`` best centroids of each query token, best first; ties by number.

    ``products`` is ``[query tokens, centroids]``, ``chosen`` ``[query tokens, count]``.
    """
    width = products.shape[1]
    heap = np.empty(count, np.float32)
    places = np.empty(count, np.int32)
    for token in range(len(products)):
        size = 0
        for centroid in range(width):
            value = products[token, centroid]
            if size == count and value <= heap[0]:
                continue
            if size < count:
                place = size
                size += 1
                while place > 0:
                    parent = (place - 1) >> 1
                    if not _below(value, centroid, heap[parent], places[parent]):
                        break
                    heap[place], places[place] = heap[parent], places[parent]
                    place = parent
            else:
                place = _sunk(heap, places, size, value, centroid)
            heap[place], places[place] = value, centroid
        for last in range(size - 1, -1, -1):
            chosen[token, last] = places[0]
            value, centroid = heap[last], places[last]
            place = _sunk(heap, places, last, value, centroid)
            heap[place], places[place] = value, centroid


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _below(value: float, place: int, other: float, other_place: int) -> bool:
    return value < other or (value == other and place > other_place)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _sunk(
    heap: NDArray[np.float32], places: NDArray[np.int32], size: int, value: float, centroid: int
) -> int:
    """Move up what is below an entry that enters at the top; return the place left for it."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            return place
        if child + 1 < size and _below(
            heap[child + 1], places[child + 1], heap[child], places[child]
        ):
            child += 1
        if not _below(heap[child], places[child], value, centroid):
            return place
        heap[place], places[place] = heap[child], places[child]
        place = child


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def add_lists(
    products: NDArray[np.float32],
    chosen: NDArray[np.int32],
    probes: int,
    starts: Any,
    rows: Any,
    first_row: int,
    allowed: NDArray[np.bool_],
    sums: NDArray[np.float32],
    last_token: NDArray[np.int32],
    seen: NDArray[np.int32],
    size: int,
) -> int:
    """Add to ``sums`` what each query token finds in the lists of its ``probes`` centroids.

    A document counts with its best probed centroid (lists are read best first), less what a
    document that is in none of them is taken to have: the product of the next best centroid, or
    of the last where all are probed. ``rows`` are those of one segment, from ``first_row`` on.
    ``last_token`` says which token a document counted for, ``UNSEEN`` at first; documents are
    noted in ``seen``. Returns the number noted. ``allowed`` is empty where all are.
    """
    restricted = len(allowed) > 0
    for token in range(len(chosen)):
        missing = products[token, chosen[token, chosen.shape[1] - 1]]
        for probe in range(probes):
            centroid = chosen[token, probe]
            gain = products[token, centroid] - missing
            for place in range(starts[centroid], starts[centroid + 1]):
                row = first_row + rows[place]
                before = last_token[row]
                if before == token:
                    continue
                if before == UNSEEN:
                    if restricted and not allowed[row]:
                        continue
                    seen[size] = row
                    size += 1
                last_token[row] = token
                sums[row] += gain
    return size


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def best_sums(
    sums: NDArray[np.float32],
    last_token: NDArray[np.int32],
    seen: NDArray[np.int32],
    size: int,
    count: int,
    found: NDArray[np.int64],
) -> int:
    """Write the ``count`` documents of the greatest sums, and clear sums and marks.

    Ties at the end go to the lower rows. Returns how many were written.
    """
    least, most = np.float32(np.inf), np.float32(-np.inf)
    for place in range(size):
        value = sums[seen[place]]
        least, most = min(least, value), max(most, value)
    written = 0
    if size <= count:
        for place in range(size):
            found[place] = seen[place]
        written = size
    elif not most > least:
        lowest = ascending(seen[:size])
        for place in range(count):
            found[place] = lowest[place]
        written = count
    else:
        written = _best_by_bins(sums, seen, size, count, least, most, found)
    for place in range(size):
        sums[seen[place]] = 0
        last_token[seen[place]] = UNSEEN
    return written


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _best_by_bins(
    sums: NDArray[np.float32],
    seen: NDArray[np.int32],
    size: int,
    count: int,
    least: np.float32,
    most: np.float32,
    found: NDArray[np.int64],
) -> int:
    """Write the best ``count`` of more: all of the upper bins, and the best of the one between."""
    scale = np.float32((BINS - 1) / (np.float64(most) - np.float64(least)))
    sizes = np.zeros(BINS, np.int64)
    for place in range(size):
        sizes[_bin(sums[seen[place]], least, scale)] += 1
    edge, above = BINS - 1, 0
    while above + sizes[edge] < count:
        above += sizes[edge]
        edge -= 1
    rest = np.empty(sizes[edge], np.int64)
    values = np.empty(sizes[edge], np.float32)
    left, written = 0, 0
    for place in range(size):
        row = seen[place]
        home = _bin(sums[row], least, scale)
        if home > edge:
            found[written] = row
            written += 1
        elif home == edge:
            rest[left], values[left] = row, np.float32(0) - sums[row]  # never -0, which sorts apart
            left += 1
    # One integer holds the value, its bits in the order of numbers, and then the row.
    bits = values.view(np.int32)
    for place in range(left):
        ordered = np.int64(bits[place])
        if ordered < 0:
            ordered ^= 0x7FFFFFFF
        rest[place] |= ordered << 32
    rest = ascending(rest)
    for place in range(count - written):
        found[written + place] = rest[place] & 0xFFFFFFFF
    return count


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _bin(value: np.float32, least: np.float32, scale: np.float32) -> int:
    return min(max(np.int64((value - least) * scale), 0), BINS - 1)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def fill_lists(
    codes: NDArray[np.int32],
    bounds: NDArray[np.int64],
    marks: NDArray[np.int32],
    ends: NDArray[np.int64],
    rows: NDArray[np.int32],
) -> None:
    """Write each centroid's documents once, ascending, from its place in ``ends`` on.

    ``marks`` begin as ``UNSEEN``. Without room in ``rows`` the documents are only counted.
    """
    for document in range(len(bounds) - 1):
        for token in range(bounds[document], bounds[document + 1]):
            centroid = codes[token]
            if marks[centroid] != document:
                marks[centroid] = document
                if len(rows):
                    rows[ends[centroid]] = document
                ends[centroid] += 1
