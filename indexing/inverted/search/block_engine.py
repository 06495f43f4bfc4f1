"""The pruning engine: blocks in the order of their bounds, until no bound reaches the k-th score.

Block-Max Pruning (Mallia, Suel and Tonellotto, SIGIR 2024) over groups of blocks, made exact for
float32 impacts: where a segment's codes are rounded up, they give each document an upper and a
lower bound of its score, the threshold is the k-th lower bound, and the few documents whose upper
bound reaches it at the end are scored from the impacts themselves. Nothing is left out at equality,
every block whose bound reaches the threshold is scored, and sums are float32, so none can wrap.
"""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sluice.indexing.inverted.search.blocks import (
    best_groups_first,
    bound_blocks,
    bound_groups,
    fetch,
    locate,
    score_documents,
    sum_block,
)
from sluice.indexing.inverted.search.record import GAVE_UP, POSTINGS, RESCORED, SCORED
from sluice.indexing.inverted.segments.kernels import hashed_term
from sluice.indexing.inverted.segments.segment import GROUP, LAST_ROW, Segment
from sluice.indexing.kernels.ranking import (
    LARGEST_BITS,
    ROW_MASK,
    ascending,
    bits_of,
    key_of,
    offer,
    put,
    score_of,
)

LARGEST = np.float32(np.finfo(np.float32).max)
TINY = np.float32(np.finfo(np.float32).tiny)
UNIT = np.float32(2.0**-23)  # twice the unit roundoff of float32
BATCH = 16  # candidates that are scored together
SPARE = 1024  # candidates beyond four times k that are kept before the engine gives up
FIRST_LOOK = 8  # blocks scored before the remaining work is estimated, then doubled


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def search_blocks(  # noqa: C901 - one traversal, its parts are below
    segment: Segment,
    first_row: int,
    allowed: NDArray[np.bool_],
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    exact: bool,
    alpha: np.float32,
    budget: int,
    bar: int,
    heap: NDArray[np.int64],
    size: int,
    work: NDArray[np.int64],
) -> tuple[int, int]:
    """Offer the segment's best documents to the heap; return (new size, -1).

    When more than ``budget`` blocks remain, or too many candidates tie, the heap is left as it was
    and the result is (size, bar), where no hit's key is at or below the bar.
    """
    k, count = len(heap), len(terms)
    shift = segment.shape[1]
    margin = np.float32(count + 8) * UNIT  # what rounding can add to or take from any sum here
    up, spare = np.float32(1) + margin, np.float32(count) * TINY
    bound_weights = np.empty(count, dtype=np.float32)
    code_scales = np.empty(count, dtype=np.float32)
    hashes = np.empty(count, dtype=np.uint32)
    for j in range(count):
        # Not below the smallest float: a bound is 0 only where no term of the query is.
        weight = max(weights[j] * segment.bound_scales[terms[j]], TINY)
        bound_weights[j] = min(weight, LARGEST)
        code_scales[j] = segment.code_scales[terms[j]]
        hashes[j] = hashed_term(terms[j])
    groups = np.empty(segment.dense.shape[1] // GROUP, dtype=np.float32)
    bounds = np.empty(len(groups) * GROUP, dtype=np.float32)
    bound_blocks(
        terms, bound_weights, segment.dense_rows, segment.dense, segment.list_starts,
        segment.list_blocks, segment.list_bounds, bounds,
    )  # fmt: skip
    bound_groups(bounds, groups)
    # The heap to work on: hits of other segments, and this one's codes as lower bounds.
    lows, low_size, found = heap.copy(), size, 0
    candidates = np.empty(4 * k + SPARE if exact else 0, dtype=np.int64)
    if low_size == k:
        bar = max(bar, lows[0])
    threshold = score_of(bar + 1)
    # A bound reaches the threshold if bound * reach + spare does, whichever way it was rounded.
    reach = max(up * alpha, np.float32(1e-30))
    ordered = best_groups_first(groups, (threshold - spare) / reach * (np.float32(1) - margin))

    places = np.empty((2, 3, count), dtype=np.int64)  # first, last and query place of each hit
    hits = np.zeros(2, dtype=np.int64)
    sums = np.empty(1 << shift, dtype=np.float32)
    blocks = len(segment.directory_starts) - 1
    before, scored, look, flip, current = work[SCORED], 0, FIRST_LOOK, 0, -1
    for turn in range(len(ordered) + 1):
        last = turn == len(ordered)
        begin, end = 0, 1  # the last turn only scores the block that was located before
        if not last:
            group = ordered[turn]
            if not groups[group] * reach + spare >= threshold:
                continue
            begin, end = group * GROUP, min(group * GROUP + GROUP, blocks)
            if turn + 1 < len(ordered):
                fetch(
                    segment.directory_starts, segment.buckets, segment.directory, bounds,
                    ordered[turn + 1], (threshold - spare) / reach,
                )  # fmt: skip
        for block in range(begin, end):
            if not last:
                if bounds[block] == 0 or bounds[block] * reach + spare < threshold:
                    continue
                # While this block's postings are on their way to the cache, score the one before.
                hits[flip] = locate(segment, block, hashes, places[flip])
            if current >= 0 and bounds[current] * reach + spare >= threshold:
                scored += 1
                there = places[1 - flip]
                sum_block(segment, there, hits[1 - flip], weights, code_scales, sums)
                if exact:
                    error = _largest_error(there, hits[1 - flip], weights, code_scales)
                    found, low_size, bar = _collect_candidates(
                        segment.order, segment.shape, current, first_row, allowed, sums, error,
                        margin, spare, bar, lows, low_size, candidates, found,
                    )  # fmt: skip
                else:
                    low_size, bar = _collect(
                        segment.order, segment.shape, current, first_row, allowed, sums, bar, lows,
                        low_size,
                    )  # fmt: skip
                threshold = score_of(bar + 1)
            current = -1 if last else block
            flip = 1 - flip
        work[SCORED] = before + scored
        if found > len(candidates) or (scored >= look and low_size == k and not last):
            look = 2 * scored
            remaining = _remaining(groups, bounds, ordered[turn + 1 :], (threshold - spare) / reach)
            # The threshold still rises, and early more so: then the estimate is too high.
            allowance = budget + 3 * budget * FIRST_LOOK // scored
            if found > len(candidates) or remaining > allowance or scored > 2 * budget:
                work[GAVE_UP] = 1
                return size, bar - 1  # the k-th key may be the bar itself
    if not exact:
        put(heap, lows)
        return low_size, np.int64(-1)
    found = _still_possible(candidates, found, up, spare, threshold)
    size = _rescore(
        segment, first_row, terms, weights, hashes, ascending(candidates[:found]), up, spare, heap,
        size, work,
    )  # fmt: skip
    return size, np.int64(-1)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _collect(
    order: NDArray[np.uint32],
    shape: NDArray[np.int64],
    block: int,
    first_row: int,
    allowed: NDArray[np.bool_],
    sums: NDArray[np.float32],
    bar: int,
    heap: NDArray[np.int64],
    size: int,
) -> tuple[int, int]:
    """Offer a block's sums, which are scores, to the heap; return its size and the bar."""
    bits, first = sums.view(np.int32), block << shape[1]
    for i in range(min(len(sums), shape[0] - first)):
        if bits[i] < 0:  # no term has touched it
            continue
        row = first_row + _row(order, first + i)
        key = key_of(min(bits[i], LARGEST_BITS), row)
        if key > bar and (len(allowed) == 0 or (row < len(allowed) and allowed[row])):
            size = offer(heap, size, key)
            if size == len(heap):
                bar = max(bar, heap[0])
    return size, bar


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _collect_candidates(
    order: NDArray[np.uint32],
    shape: NDArray[np.int64],
    block: int,
    first_row: int,
    allowed: NDArray[np.bool_],
    sums: NDArray[np.float32],
    error: np.float32,
    margin: np.float32,
    spare: np.float32,
    bar: int,
    lows: NDArray[np.int64],
    size: int,
    candidates: NDArray[np.int64],
    found: int,
) -> tuple[int, int, int]:
    """Keep the documents of a block whose sums, upper bounds, reach the threshold.

    Their lower bounds go to the heap ``lows``, whose k-th is the threshold. Returns the candidates
    found, the heap's size and the bar; more candidates than there is room for means too many.
    """
    bits, first = sums.view(np.int32), block << shape[1]
    up, down = np.float32(1) + margin, np.float32(1) - margin
    threshold = score_of(bar + 1)
    for i in range(min(len(sums), shape[0] - first)):
        if bits[i] < 0 or sums[i] * up + spare < threshold:
            continue
        row = first_row + _row(order, first + i)
        if len(allowed) and not (row < len(allowed) and allowed[row]):
            continue
        if found >= len(candidates):
            found = _still_possible(candidates, found, up, spare, threshold)
            if 4 * found > 3 * len(candidates):
                return len(candidates) + 1, size, bar
        candidates[found] = (np.int64(min(bits[i], LARGEST_BITS)) << 32) | (first + i)
        found += 1
        low = (sums[i] * down - error * up) * down
        if not (np.float32(1e-30) < low < LARGEST) or sums[i] >= LARGEST:
            low = np.float32(0)
        size = offer(lows, size, key_of(bits_of(low), row))
        if size == len(lows) and lows[0] > bar:
            threshold = score_of(lows[0])
            bar = _below(threshold)
    return found, size, bar


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _largest_error(
    places: NDArray[np.int64],
    hits: int,
    weights: NDArray[np.float32],
    code_scales: NDArray[np.float32],
) -> Any:
    """Return how far above a document's score its sum of codes can be: one code a term."""
    error = np.float32(0)
    for hit in range(hits):
        j = places[2, hit]
        error += min(weights[j] * code_scales[j], LARGEST)
    return error


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _rescore(
    segment: Segment,
    first_row: int,
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    hashes: NDArray[np.uint32],
    ranked: NDArray[np.int64],
    up: np.float32,
    spare: np.float32,
    heap: NDArray[np.int64],
    size: int,
    work: NDArray[np.int64],
) -> int:
    """Offer the exact scores of candidates, by descending upper bound; return the heap's size."""
    totals = np.empty(BATCH, dtype=np.float32)
    pairs = np.empty((4, BATCH * len(terms)), dtype=np.int64)
    places = np.empty((3, len(terms)), dtype=np.int64)
    left = len(ranked)
    while left > 0:
        full = size == len(heap)
        if full and score_of(ranked[left - 1]) * up + spare < score_of(heap[0]):
            break
        batch = ranked[max(left - BATCH, 0) : left]
        left -= len(batch)
        work[RESCORED] += len(batch)
        work[POSTINGS] += score_documents(
            segment, batch, terms, weights, hashes, places, pairs, totals
        )
        for at in range(len(batch)):
            row = first_row + _row(segment.order, batch[at] & ROW_MASK)
            size = offer(heap, size, key_of(min(bits_of(totals[at]), LARGEST_BITS), row))
    return size


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _row(order: NDArray[np.uint32], document: int) -> Any:
    """Return a document's row, from the segment's first."""
    if len(order):
        return min(np.int64(order[document]), LAST_ROW)
    return np.int64(document)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _below(score: np.float32) -> Any:
    """Return the greatest bar that keeps every key of ``score``, whatever its row."""
    return (np.int64(bits_of(score)) << 32) - 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _still_possible(
    candidates: NDArray[np.int64],
    found: int,
    up: np.float32,
    spare: np.float32,
    threshold: np.float32,
) -> int:
    """Keep the candidates whose upper bound reaches the threshold; return how many."""
    kept = 0
    for i in range(found):
        if score_of(candidates[i]) * up + spare >= threshold:
            candidates[kept] = candidates[i]
            kept += 1
    return kept


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _remaining(
    groups: NDArray[np.float32],
    bounds: NDArray[np.float32],
    ordered: NDArray[np.int32],
    least: np.float32,
) -> int:
    """Return how many blocks still have to be scored, were the threshold to stay as it is."""
    count = 0
    for group in ordered:
        if groups[group] >= least:
            for bound in bounds[group * GROUP : group * GROUP + GROUP]:
                count += bound >= least
    return count
