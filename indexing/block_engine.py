"""The pruning engine: blocks in the order of their bounds, until no bound reaches the k-th score.

Block-Max Pruning (Mallia, Suel and Tonellotto, SIGIR 2024) over groups of blocks, made exact for
float32 impacts: where a segment's codes are rounded up, they give each document an upper and a
lower bound of its score, the threshold is the k-th lower bound, and the few documents whose upper
bound reaches it at the end are scored from the impacts themselves. Nothing is left out at equality,
every block whose bound reaches the threshold is scored, and sums are float32, so none can wrap.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from indexing.bounds import best_groups_first, bound_blocks, bound_groups, refine_group
from indexing.heap import LARGEST_BITS, ROW_MASK, bits_of, key_of, offer, score_of
from indexing.prefetch import prefetch
from indexing.segment import GROUP, RUN_BITS, TILE, WINDOW, Segment
from indexing.segment_kernels import hashed_term

LARGEST = np.float32(np.finfo(np.float32).max)
TINY = np.float32(np.finfo(np.float32).tiny)
UNIT = np.float32(2.0**-23)  # twice the unit roundoff of float32
BATCH = 16  # candidates that are scored together
LINE = 32  # 16-bit numbers in a line of the cache
SPARE = 1024  # candidates beyond four times k that are kept before the engine gives up
FIRST_LOOK = 8  # blocks scored before the remaining work is estimated, then doubled
# Places in the record of a query's work.
SCORED, RESCORED, POSTINGS, GAVE_UP = 0, 1, 2, 3


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def search_blocks(
    segment: Segment,
    first_row: int,
    allowed: NDArray[np.bool_],
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    exact: bool,
    alpha: np.float32,
    lazy: bool,
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
    code_errors = np.empty(count, dtype=np.float32)
    code_scales = np.empty(count, dtype=np.float32)
    hashes = np.empty(count, dtype=np.uint32)
    for j in range(count):
        bound_weights[j] = min(weights[j] * segment.bound_scales[terms[j]], LARGEST)
        code_scales[j] = segment.code_scales[terms[j]]
        code_errors[j] = min(weights[j] * code_scales[j], LARGEST)
        hashes[j] = hashed_term(terms[j])

    groups = np.empty(segment.dense_groups.shape[1], dtype=np.float32)
    bounds = np.empty(len(groups) * GROUP, dtype=np.float32)
    bound_blocks(
        terms, bound_weights, segment.dense_rows, segment.dense, segment.list_starts,
        segment.list_blocks, segment.list_bounds, lazy, bounds,
    )  # fmt: skip
    bound_groups(
        terms, bound_weights, segment.dense_rows, segment.dense_groups, lazy, bounds, groups
    )
    blocks = len(segment.directory_starts) - 1
    # The heap to work on: hits of other segments, and this one's codes as lower bounds.
    lows, low_size = heap.copy(), size
    candidates = np.empty(4 * k + SPARE if exact else 0, dtype=np.int64)
    found = 0
    if low_size == k:
        bar = max(bar, lows[0])
    # A block is left out if bound * reach + spare < threshold, whichever rounding.
    reach = up * alpha
    threshold = score_of(bar + 1) if bar >= 0 else np.float32(0)
    ordered = best_groups_first(groups, (threshold - spare) / reach * (np.float32(1) - margin))

    places = np.empty((2, 3, count), dtype=np.int64)  # first, last and query place of each hit
    hits = np.zeros(2, dtype=np.int64)
    sums = np.empty(1 << shift, dtype=np.float32)
    bits = sums.view(np.int32)
    scored, look, flip, current = 0, FIRST_LOOK, 0, -1
    for turn in range(len(ordered) + 1):
        last = turn == len(ordered)
        if not last:
            group = ordered[turn]
            if groups[group] * reach + spare < threshold:
                continue
            if lazy:
                refine_group(terms, bound_weights, segment.dense_rows, segment.dense, group, bounds)
            begin, end = group * GROUP, min(group * GROUP + GROUP, blocks)
            if turn + 1 < len(ordered):
                _fetch(segment, bounds, ordered[turn + 1], (threshold - spare) / reach)
        else:
            begin, end = 0, 1  # one more turn, to score the block that was located last
        for block in range(begin, end):
            if not last:
                if bounds[block] * reach + spare < threshold:
                    continue
                # While this block's postings are on their way to the cache, score the one before.
                hits[flip] = _locate(segment, block, hashes, places[flip])
            if current >= 0 and bounds[current] * reach + spare >= threshold:
                scored += 1
                error = _sum_block(
                    segment,
                    places[1 - flip],
                    hits[1 - flip],
                    weights,
                    code_scales,
                    code_errors,
                    sums,
                )
                first = current << shift
                for i in range(min(1 << shift, segment.shape[0] - first)):
                    if bits[i] < 0:  # no term has touched it
                        continue
                    place = first + i
                    row = first_row + place
                    if len(segment.order):
                        row = first_row + np.int64(segment.order[place])
                    if exact:
                        if sums[i] * up + spare < threshold:
                            continue
                        if len(allowed) and not allowed[row]:
                            continue
                        if found == len(candidates):
                            found = _still_possible(candidates, found, up, spare, threshold)
                            if 4 * found > 3 * len(candidates):
                                work[SCORED] = scored
                                work[GAVE_UP] = 1
                                return size, max(bar, _below(threshold))
                        low = (sums[i] * (np.float32(1) - margin) - error * up) * (
                            np.float32(1) - margin
                        )
                        if not (np.float32(1e-30) < low < LARGEST) or sums[i] >= LARGEST:
                            low = np.float32(0)
                        candidates[found] = (np.int64(min(bits[i], LARGEST_BITS)) << 32) | place
                        found += 1
                        key = key_of(bits_of(low), row)
                    else:
                        key = key_of(min(bits[i], LARGEST_BITS), row)
                        if key <= bar or (len(allowed) and not allowed[row]):
                            continue
                    low_size = offer(lows, low_size, key)
                    if low_size == k and lows[0] > bar:
                        bar = lows[0]
                        if exact:
                            bar = _below(score_of(bar))
                        threshold = score_of(bar + 1)
            current = -1 if last else block
            flip = 1 - flip
        if scored >= look and low_size == k and not last:
            look = 2 * scored
            remaining = _remaining(groups, bounds, lazy, ordered[turn + 1 :], reach, spare,
                                   threshold)  # fmt: skip
            # The threshold still rises, and early more so: then the estimate is too high.
            if remaining > budget + 3 * budget * FIRST_LOOK // scored:
                work[SCORED] = scored
                work[GAVE_UP] = 1
                return size, max(_below(threshold), np.int64(-1))
    work[SCORED] += scored
    if not exact:
        heap[:] = lows
        return low_size, np.int64(-1)
    found = _still_possible(candidates, found, up, spare, threshold)
    ranked = np.sort(candidates[:found])
    totals = np.empty(BATCH, dtype=np.float32)
    pairs = np.empty((4, BATCH * count), dtype=np.int64)
    while found > 0:
        if size == k and score_of(ranked[found - 1]) * up + spare < score_of(heap[0]):
            break
        batch = ranked[max(found - BATCH, 0) : found]
        found -= len(batch)
        work[RESCORED] += len(batch)
        work[POSTINGS] += _score(segment, batch, terms, weights, hashes, places[0], pairs, totals)
        for at in range(len(batch)):
            place = batch[at] & ROW_MASK
            row = first_row + (np.int64(segment.order[place]) if len(segment.order) else place)
            size = offer(heap, size, key_of(min(bits_of(totals[at]), LARGEST_BITS), row))
    return size, np.int64(-1)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _below(score: np.float32) -> Any:
    """Return the greatest bar that keeps every key of ``score``, whatever its row."""
    return (np.int64(bits_of(score)) << 32) - 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _fetch(segment: Segment, bounds: NDArray[np.float32], group: int, least: np.float32) -> None:
    """Begin to load the directories of a group's blocks that may be scored."""
    blocks = len(segment.directory_starts) - 1
    for block in range(group * GROUP, min(group * GROUP + GROUP, blocks)):
        if bounds[block] >= least:
            buckets = segment.buckets[block]
            for place in range(0, len(buckets), LINE):
                prefetch(buckets, place)
            start = segment.directory_starts[block] + WINDOW * block
            end = segment.directory_starts[block + 1] + WINDOW * block
            for place in range(start, end, LINE // 2):
                prefetch(segment.directory, place)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _locate(
    segment: Segment,
    block: int,
    hashes: NDArray[np.uint32],
    places: NDArray[np.int64],
) -> int:
    """Find the block's postings of each query term and prefetch them; return how many terms hit."""
    start = segment.directory_starts[block] + WINDOW * block
    entries = np.uint32(segment.directory_starts[block + 1] - segment.directory_starts[block])
    directory = segment.directory[start : start + entries + np.uint32(WINDOW)]
    buckets = segment.buckets[block]
    right = np.uint32(32) - np.uint32(segment.shape[3])
    base, end = segment.block_starts[block], segment.block_starts[block + 1]
    tagged = len(segment.directory_tags) > 0
    hits = 0
    for j in range(len(hashes)):
        code = hashes[j]
        key = code & np.uint32(0xFFFF0000)
        bucket = np.uint64(code) >> np.uint64(right)
        low, below = np.uint32(buckets[bucket]), np.uint32(0)
        for i in range(WINDOW):
            below += np.uint32(directory[low + np.uint32(i)] < key)
        low += below
        if below == WINDOW:
            while directory[low] < key and low < entries:
                low += np.uint32(1)
        if tagged:
            tag = np.uint16(code & np.uint32(0xFFFF))
            while (
                low < entries
                and directory[low] & np.uint32(0xFFFF0000) == key
                and segment.directory_tags[start + low] < tag
            ):
                low += np.uint32(1)
        entry, following = directory[low], directory[low + np.uint32(1)]
        hit = low < entries and entry & np.uint32(0xFFFF0000) == key
        if tagged and hit:
            hit = segment.directory_tags[start + low] == tag
        first = base + np.int64(entry & np.uint32(0xFFFF))
        last = end
        if low + np.uint32(1) < entries:
            last = base + np.int64(following & np.uint32(0xFFFF))
        prefetch(segment.codes, first if hit else base)
        places[0, hits] = first
        places[1, hits] = last
        places[2, hits] = j
        hits += hit
    return hits


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _sum_block(
    segment: Segment,
    places: NDArray[np.int64],
    hits: int,
    weights: NDArray[np.float32],
    code_scales: NDArray[np.float32],
    code_errors: NDArray[np.float32],
    sums: NDArray[np.float32],
) -> Any:
    """Sum the codes of a block's documents, -0.0 where no term hits; return the largest error."""
    code_bits = np.uint16(segment.shape[2])
    mask = np.uint16((1 << segment.shape[2]) - 1)
    sums[:] = np.float32(-0.0)
    error = np.float32(0)
    for hit in range(hits):
        j = places[2, hit]
        weight, scale = weights[j], code_scales[j]
        error += code_errors[j]
        codes = segment.codes[places[0, hit] : places[1, hit]]
        for i in range(len(codes)):
            code = codes[i]
            sums[code >> code_bits] += weight * (scale * np.float32(code & mask))
    return error


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
    lazy: bool,
    ordered: NDArray[np.int32],
    reach: np.float32,
    spare: np.float32,
    threshold: np.float32,
) -> int:
    """Return how many blocks still have to be scored, were the threshold to stay as it is."""
    blocks = 0
    for group in ordered:
        if groups[group] * reach + spare >= threshold:
            if lazy:
                blocks += GROUP // 4  # of a group that reaches it; others are not yet bounded
            else:
                for bound in bounds[group * GROUP : group * GROUP + GROUP]:
                    blocks += bound * reach + spare >= threshold
    return blocks


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _score(
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

    Returns the impacts read. Each is behind three reads that depend on each other and miss the
    cache; all candidates' terms take each step together, so that the misses overlap.
    """
    shift = segment.shape[1]
    code_bits = np.uint16(segment.shape[2])
    count = 0
    for at in range(len(candidates)):
        document = candidates[at] & ROW_MASK
        totals[at] = np.float32(-0.0)
        offset = np.uint16(document & ((1 << shift) - 1))
        hits = _locate(segment, document >> shift, hashes, places)
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
        first, last = np.int64(segment.run_starts[run]), np.int64(segment.run_starts[run + 1])
        # Where the posting would stand if the run's were spread evenly.
        guess = first + (((last - first) * (document & ((1 << RUN_BITS) - 1))) >> RUN_BITS)
        prefetch(segment.offsets, guess)
        prefetch(segment.offsets, max(guess - LINE, first))
        prefetch(segment.offsets, min(guess + LINE, last - 1))
        pairs[2, pair], pairs[3, pair] = run, guess
    for pair in range(count):
        document = candidates[pairs[0, pair]] & ROW_MASK
        place = _place_of(segment, pairs[2, pair], pairs[3, pair], document & (TILE - 1))
        prefetch(segment.values, place)
        pairs[3, pair] = place
    for pair in range(count):
        j = pairs[1, pair]
        impact = segment.scales[terms[j]] * np.float32(segment.values[pairs[3, pair]])
        totals[pairs[0, pair]] += weights[j] * impact
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
    first, last = np.int64(segment.run_starts[run]), np.int64(segment.run_starts[run + 1])
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
