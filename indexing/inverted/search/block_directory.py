"""Reads a block's directory: finds each query term's codes and sums them."""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sluice.indexing.inverted.segments.segment import GROUP, WINDOW, Segment
from sluice.indexing.kernels.prefetch import LINE, prefetch


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
