"""Searches for a few queries term at a time in numpy, without loading compiled kernels.

To load numba and its kernels takes a third of a second, which one query from the shell need not
wait for. Scores and order are those of the other engines, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sluice.indexing.hits import LARGEST_SCORE, MISSING_ROW, MISSING_SCORE, Mask
from sluice.indexing.inverted.segments.segment import RUNS_PER_TILE_BITS, TILE_BITS, Segment

# Rows count down in a key's lower half, so that of equal scores the lower row is the greater key.
ROW_MASK = (1 << 32) - 1
UNTOUCHED = np.float32(-0.0)  # adding a product, even +0.0, clears the sign


def expected_work(
    segments: Sequence[tuple[Segment, int]], terms: NDArray[np.int64], queries: int
) -> int:
    """Return the postings of the queries' terms and the documents looked through for them."""
    work = 0
    for segment, _ in segments:
        known = terms[terms < segment.terms]
        firsts = segment.run_starts[segment.first_run[known]].astype(np.int64)
        lasts = segment.run_starts[segment.first_run[known + 1]].astype(np.int64)
        work += int((lasts - firsts).sum()) + queries * segment.documents
    return work


def search_query(
    segments: Sequence[tuple[Segment, int]],
    allowed: Mask | None,
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    rows: NDArray[np.int64],
    scores: NDArray[np.float32],
) -> None:
    """Fill ``rows`` and ``scores``, one place for each of the best hits, for one query.

    ``segments`` are given with their first rows; ``terms`` ascend. A score is the float32 sum over
    the shared terms in ascending order, each product rounded to float32.
    """
    keys = np.concatenate(
        [np.empty(0, np.int64)]
        + [_keys(segment, first, allowed, terms, weights) for segment, first in segments]
    )
    k = len(rows)
    if len(keys) > k:
        keys = np.partition(keys, len(keys) - k)[len(keys) - k :]
    keys = np.sort(keys)[::-1]
    count = len(keys)
    rows[:count] = ROW_MASK - (keys & ROW_MASK)
    scores[:count] = (keys >> 32).astype(np.int32).view(np.float32)
    rows[count:], scores[count:] = MISSING_ROW, MISSING_SCORE


def _keys(
    segment: Segment,
    first_row: int,
    allowed: Mask | None,
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
) -> NDArray[np.int64]:
    """Return a key for each document that shares a term: the score's bits, then the row."""
    sums = np.full(segment.documents, UNTOUCHED, dtype=np.float32)
    for term, weight in zip(terms.tolist(), weights, strict=True):
        if term >= segment.terms:  # terms ascend
            break
        first, last = segment.first_run[term], segment.first_run[term + 1]
        starts = segment.run_starts[first : last + 1].astype(np.int64)
        begin, end = starts[0], starts[-1]
        tiles = segment.run_numbers[first:last].astype(np.int64) >> RUNS_PER_TILE_BITS
        places = np.repeat(tiles << TILE_BITS, np.diff(starts)) + segment.offsets[begin:end]
        if len(segment.impacts):
            impacts = segment.impacts[begin:end]
        else:
            impacts = segment.scales[term] * segment.impact_codes[begin:end].astype(np.float32)
        with np.errstate(over="ignore"):  # a product beyond float32 counts as the largest
            sums[places] += weight * impacts
    touched = np.flatnonzero(~np.signbit(sums))
    local = segment.order[touched].astype(np.int64) if len(segment.order) else touched
    rows = local + first_row
    if allowed is not None:
        touched, rows = touched[allowed[rows]], rows[allowed[rows]]
    bits = np.minimum(sums[touched], LARGEST_SCORE).view(np.int32).astype(np.int64)
    keys: NDArray[np.int64] = bits << 32 | ROW_MASK - rows
    return keys
