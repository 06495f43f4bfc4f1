"""Blocks of documents: their directories, bounds of the scores in them, and exact scores."""

# mypy: disable-error-code="arg-type, assignment, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sluice.indexing.inverted.segments.segment import GROUP, RUN_BITS, TILE, WINDOW, Segment
from sluice.indexing.kernels.processor import LINE, prefetch
from sluice.indexing.kernels.ranking import ROW_MASK


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def fetch(
    directory_starts: NDArray[np.int64],
    all_buckets: NDArray[np.uint16],
    directory: NDArray[np.uint32],
    bounds: NDArray[np.float32],
    group: int,
    least: np.float32,
) -> None:
    """Begin to load the directories of a group's blocks that may be scored."""
    blocks = len(directory_starts) - 1
    for block in range(group * GROUP, min(group * GROUP + GROUP, blocks)):
        if bounds[block] >= least:
            buckets = all_buckets[block]
            for place in range(0, len(buckets), LINE):
                prefetch(buckets, place)
            start = directory_starts[block] + WINDOW * block
            end = directory_starts[block + 1] + WINDOW * block
            for place in range(start, end, LINE // 2):
                prefetch(directory, place)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def locate(
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
        low, below = min(np.uint32(buckets[bucket]), entries), np.uint32(0)
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
def sum_block(
    segment: Segment,
    places: NDArray[np.int64],
    hits: int,
    weights: NDArray[np.float32],
    code_scales: NDArray[np.float32],
    sums: NDArray[np.float32],
) -> None:
    """Sum the codes of a block's documents; -0.0 where no term hits."""
    code_bits = np.uint16(segment.shape[2])
    mask = np.uint16((1 << segment.shape[2]) - 1)
    within = np.uint16(len(sums) - 1)  # whatever a damaged file says
    sums[:] = np.float32(-0.0)
    for hit in range(hits):
        j = places[2, hit]
        weight, scale = weights[j], code_scales[j]
        codes = segment.codes[places[0, hit] : places[1, hit]]
        for i in range(len(codes)):
            code = codes[i]
            place = (code >> code_bits) & within
            sums[place] += weight * (scale * np.float32(code & mask))


FETCHED = 512  # entries of a list that are fetched early
CHUNK = 4096  # bounds summed at a time: 16 KB stay in the nearest cache
LOOSE = {"contract", "nsz", "arcp"}  # bounds carry a margin for rounding, scores never


@njit(cache=True, nogil=True, fastmath=LOOSE)  # type: ignore[untyped-decorator]
def bound_blocks(
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    dense_rows: NDArray[np.int32],
    dense: NDArray[np.uint8],
    list_starts: NDArray[np.int64],
    list_blocks: NDArray[np.uint16],
    list_bounds: NDArray[np.uint8],
    bounds: NDArray[np.float32],
) -> None:
    """Set each block's bound; ``weights`` are the query's times the terms' bound scales."""
    rows = np.empty(len(terms), dtype=np.int64)
    row_weights = np.empty(len(terms), dtype=np.float32)
    count = 0
    bounds[:] = 0
    for j in range(len(terms)):
        row = dense_rows[terms[j]]
        if row >= 0:
            rows[count], row_weights[count] = row, weights[j]
            count += 1
        else:  # read last, so they may be on their way meanwhile
            first, last = list_starts[terms[j]], list_starts[terms[j] + 1]
            for place in range(first, min(last, first + FETCHED), LINE):
                prefetch(list_blocks, place)
            for place in range(first, min(last, first + FETCHED), 2 * LINE):
                prefetch(list_bounds, place)
    for first in range(0, len(bounds), CHUNK):
        _add_rows(rows[:count], row_weights, dense, first, bounds[first : first + CHUNK])
    for j in range(len(terms)):
        if dense_rows[terms[j]] < 0:
            listed = slice(list_starts[terms[j]], list_starts[terms[j] + 1])
            _add_list(weights[j], list_blocks[listed], list_bounds[listed], bounds)


@njit(cache=True, nogil=True, fastmath=LOOSE)  # type: ignore[untyped-decorator]
def _add_rows(
    rows: NDArray[np.int64],
    weights: NDArray[np.float32],
    dense: NDArray[np.uint8],
    first: int,
    part: NDArray[np.float32],
) -> None:
    """Add a stretch of dense rows to the bounds from ``first`` on, two rows at a time."""
    size = len(part)
    for pair in range(0, len(rows) - 1, 2):
        v, w = weights[pair], weights[pair + 1]
        a = dense[rows[pair]][first : first + size]
        b = dense[rows[pair + 1]][first : first + size]
        for i in range(size):
            part[i] += v * np.float32(a[i]) + w * np.float32(b[i])
    if len(rows) % 2:
        v = weights[len(rows) - 1]
        a = dense[rows[-1]][first : first + size]
        for i in range(size):
            part[i] += v * np.float32(a[i])


@njit(cache=True, nogil=True, fastmath=LOOSE)  # type: ignore[untyped-decorator]
def _add_list(
    weight: np.float32,
    blocks: NDArray[np.uint16],
    codes: NDArray[np.uint8],
    bounds: NDArray[np.float32],
) -> None:
    for i in range(len(blocks)):
        block = min(np.int64(blocks[i]), len(bounds) - 1)  # whatever a damaged file says
        bounds[block] += weight * np.float32(codes[i])


@njit(cache=True, nogil=True, fastmath=LOOSE)  # type: ignore[untyped-decorator]
def bound_groups(bounds: NDArray[np.float32], groups: NDArray[np.float32]) -> None:
    """Set each group's bound: the largest of its blocks'."""
    for group in range(len(groups)):
        most = np.float32(0)
        for bound in bounds[group * GROUP : group * GROUP + GROUP]:
            most = max(most, bound)
        groups[group] = most


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def best_groups_first(groups: NDArray[np.float32], least: np.float32) -> NDArray[np.int32]:
    """Return the groups whose bound is at least ``least``, roughly in descending order.

    A counting sort into 1,024 classes: within a class the order is that of the documents.
    """
    classes = 1024
    most, count = np.float32(0), 0
    for group in range(len(groups)):
        if groups[group] > 0 and groups[group] >= least:
            count += 1
            most = max(most, min(groups[group], np.float32(3e38)))
    ordered = np.empty(count, dtype=np.int32)
    width = most - least
    scale = np.float32(classes - 1) / width if width > np.float32(1e-30) else np.float32(0)
    places = np.zeros(classes + 1, dtype=np.int64)
    for group in range(len(groups)):
        if groups[group] > 0 and groups[group] >= least:
            distance = max(most - groups[group], np.float32(0)) * scale
            places[1 + min(np.int64(distance), np.int64(classes - 1))] += 1
    for i in range(classes):
        places[i + 1] += places[i]
    for group in range(len(groups)):
        if groups[group] > 0 and groups[group] >= least:
            distance = max(most - groups[group], np.float32(0)) * scale
            place = min(np.int64(distance), np.int64(classes - 1))
            ordered[places[place]] = group
            places[place] += 1
    return ordered


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
