"""Exact scores of single documents, whose impacts are looked up in the postings by term."""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sluice.indexing.inverted.search.blocks import locate
from sluice.indexing.inverted.segments.segment import RUN_BITS, TILE, Segment
from sluice.indexing.kernels.ordering import ROW_MASK
from sluice.indexing.kernels.processor import LINE, prefetch


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def score_documents(
    segment: Segment,
    candidates: NDArray[np.int64],
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    hashes: NDArray[np.uint32],
    places: NDArray[np.int64],
    pairs: NDArray[np.int64],
    totals: NDArray[np.float32],
) -> int:
    """Set the candidates' scores, summed from the impacts in ascending term order.

    Returns the impacts read. Each takes three reads that depend on each other and miss the
    cache; all candidates' terms take each step together, so that the misses overlap.
    """
    shift = segment.shape[1]
    code_bits = np.uint16(segment.shape[2])
    count = 0
    for at in range(len(candidates)):
        document = candidates[at] & ROW_MASK
        totals[at] = np.float32(-0.0)
        offset = np.uint16(document & ((1 << shift) - 1))
        hits = locate(segment, document >> shift, hashes, places)
        for hit in range(hits):
            present = False
            for code in segment.codes[places[0, hit] : places[1, hit]]:
                present |= code >> code_bits == offset
            if present:
                j = places[2, hit]
                first, last = segment.first_run[terms[j]], segment.first_run[terms[j] + 1]
                run = min(first + (document >> RUN_BITS), last - 1)
                prefetch(segment.run_numbers, run)
                prefetch(segment.run_starts, run)
                pairs[0, count], pairs[1, count], pairs[2, count] = at, j, run
                count += 1
    for pair in range(count):
        document = candidates[pairs[0, pair]] & ROW_MASK
        run = _run_of(segment, terms[pairs[1, pair]], document >> RUN_BITS, pairs[2, pair])
        first, last = _ends(segment, run)
        # Where the posting would be if the run's were spread evenly.
        guess = first + (((last - first) * (document & ((1 << RUN_BITS) - 1))) >> RUN_BITS)
        prefetch(segment.offsets, guess)
        prefetch(segment.offsets, max(guess - LINE, first))
        prefetch(segment.offsets, min(guess + LINE, last - 1))
        pairs[2, pair], pairs[3, pair] = run, guess
    for pair in range(count):
        document = candidates[pairs[0, pair]] & ROW_MASK
        place = _place_of(segment, pairs[2, pair], pairs[3, pair], document & (TILE - 1))
        prefetch(segment.impacts, place)
        pairs[3, pair] = place
    for pair in range(count):
        j = pairs[1, pair]
        totals[pairs[0, pair]] += weights[j] * segment.impacts[pairs[3, pair]]
    return count


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _run_of(segment: Segment, term: int, wanted: int, guess: int) -> Any:
    """Return the run of a term that has the number ``wanted``; a frequent term has every run."""
    if np.int64(segment.run_numbers[guess]) == wanted:
        return guess
    low, high = segment.first_run[term], segment.first_run[term + 1]
    while high - low > 1:
        middle = (low + high) >> 1
        if np.int64(segment.run_numbers[middle]) <= wanted:
            low = middle
        else:
            high = middle
    return low


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _place_of(segment: Segment, run: int, guess: int, offset: int) -> Any:
    """Return the posting of a run that has the offset: by ever wider steps from a guess."""
    first, last = _ends(segment, run)
    step = np.int64(LINE)
    if np.int64(segment.offsets[guess]) <= offset:
        low, high = guess, guess + step
        while high < last and np.int64(segment.offsets[high]) <= offset:
            step *= 2
            low, high = high, high + step
        high = min(high, last)
    else:
        low, high = guess - step, guess
        while low > first and np.int64(segment.offsets[low]) > offset:
            step *= 2
            low, high = low - step, low
        low = max(low, first)
    while high - low > 1:
        middle = (low + high) >> 1
        if np.int64(segment.offsets[middle]) <= offset:
            low = middle
        else:
            high = middle
    return low


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _ends(segment: Segment, run: int) -> Any:
    """Return the first posting of a run and the one after it, within bounds whatever the file."""
    most = len(segment.offsets)
    first: Any = min(np.int64(segment.run_starts[run]), most - 1)
    return first, max(min(np.int64(segment.run_starts[run + 1]), most), first + 1)
