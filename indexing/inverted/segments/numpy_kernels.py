"""What `kernels` does, in numpy: a small segment is built sooner than compiled kernels load.

In a new environment they would first be compiled, for half a minute. Each function takes the
arguments of its namesake there and writes the same, bit for bit; all need some 50 bytes a posting.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sluice.indexing.inverted.segments.segment import (
    FLOOR_RANKS,
    HASH,
    RUN_BITS,
    TILE,
    WINDOW,
)

_END = np.uint32(0xFFFFFFFF)  # padding of a directory


def survey(
    terms: NDArray[np.uint32],
    impacts: NDArray[np.float32],
    frequencies: NDArray[np.int64],
    peaks: NDArray[np.float32],
) -> None:
    """Count each term's postings and keep its largest impact."""
    frequencies += np.bincount(terms, minlength=len(frequencies))
    np.maximum.at(peaks, terms, impacts)


def _rounded_up(
    impacts: NDArray[np.float32], scales: NDArray[np.float32], most: int
) -> NDArray[np.int64]:
    """Return the least codes whose impacts are not below the given ones, at most ``most``."""
    codes = np.ceil(impacts / scales).astype(np.int64)
    codes += codes.astype(np.float32) * scales < impacts
    return np.asarray(np.clip(codes, 1, most))


def _nearest(impacts: NDArray[np.float32], scales: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the nearest 8-bit codes; an impact never becomes zero."""
    return np.asarray(np.clip(np.rint(impacts / scales).astype(np.int64), 1, 255))


def fill_blocks(
    starts: NDArray[np.int64],
    terms: NDArray[np.uint32],
    impacts: NDArray[np.float32],
    exact: bool,
    shift: int,
    code_bits: int,
    bucket_bits: int,
    code_scales: NDArray[np.float32],
    entries_out: NDArray[np.int64],
    directory: NDArray[np.uint32],
    tags: NDArray[np.uint16],
    buckets: NDArray[np.uint16],
    codes: NDArray[np.uint16],
) -> int:
    """Write the directories and codes of whole blocks of documents; return the places used."""
    documents, blocks = len(starts) - 1, len(entries_out)
    document = np.repeat(np.arange(documents), np.diff(starts))
    known = terms.astype(np.int64)
    hashed = ((known * HASH) & 0xFFFF) << 16 | known >> 16
    # By block, then by hash; the postings of a term stay in the order of their documents.
    order = np.argsort((document >> shift) << 32 | hashed, kind="stable")
    block, hashed = document[order] >> shift, hashed[order]
    scales = code_scales[terms]
    values = _rounded_up(impacts, scales, (1 << code_bits) - 1)
    if not exact:
        values = _nearest(impacts, scales)
    codes[:] = ((document & ((1 << shift) - 1)) << code_bits | values)[order]

    firsts = np.flatnonzero(_changes(block << 32 | hashed))  # of each entry's postings
    block, hashed = block[firsts], hashed[firsts]
    entries_out[:] = np.bincount(block, minlength=blocks)
    begun = starts[np.minimum(np.arange(blocks) << shift, documents)]  # first posting of a block
    used = len(firsts) + WINDOW * blocks
    places = np.arange(len(firsts)) + WINDOW * block
    directory[:used] = _END
    directory[places] = hashed & 0xFFFF0000 | firsts - begun[block]
    if len(tags):
        tags[:used] = 0xFFFF
        tags[places] = hashed & 0xFFFF
    bucket = (block << bucket_bits) + (hashed >> (32 - bucket_bits))
    tally = np.bincount(bucket, minlength=blocks << bucket_bits).reshape(blocks, -1)
    buckets[:, 0] = 0
    buckets[:, 1:] = np.cumsum(tally, axis=1)
    return used


def _changes(keys: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each key whether it differs from the one before it."""
    return np.asarray(np.diff(keys, prepend=-1) != 0)


def scatter(
    starts: NDArray[np.int64],
    terms: NDArray[np.uint32],
    impacts: NDArray[np.float32],
    first_document: int,
    first_term: int,
    places: NDArray[np.int64],
    documents_out: NDArray[np.uint32],
    impacts_out: NDArray[np.float32],
) -> None:
    """Append the postings of a range of terms to their places, documents in order."""
    local = terms.astype(np.int64) - first_term
    here = np.flatnonzero((local >= 0) & (local < len(places)))
    here = here[np.argsort(local[here], kind="stable")]
    counts = np.bincount(local[here], minlength=len(places))
    shifts = places - (np.cumsum(counts) - counts)
    targets = np.arange(len(here)) + np.repeat(shifts, counts)
    document = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    documents_out[targets] = first_document + document[here]
    impacts_out[targets] = impacts[here]
    places += counts


def digest(
    starts: NDArray[np.int64],
    documents: NDArray[np.uint32],
    impacts: NDArray[np.float32],
    exact: bool,
    shift: int,
    scales: NDArray[np.float32],
    bound_scales: NDArray[np.float32],
    least_dense: int,
    offsets: NDArray[np.uint16],
    impacts_out: NDArray[np.float32],
    impact_codes: NDArray[np.uint8],
    runs_of: NDArray[np.int64],
    run_numbers: NDArray[np.uint16],
    run_starts: NDArray[np.int64],
    listed_of: NDArray[np.int64],
    list_blocks: NDArray[np.uint16],
    list_bounds: NDArray[np.uint8],
    dense_of: NDArray[np.int32],
    dense: NDArray[np.uint8],
    floors: NDArray[np.float32],
) -> tuple[int, int, int]:
    """Write what is kept of a range of terms; return the runs, listed blocks, dense rows used."""
    count = len(starts) - 1
    term = np.repeat(np.arange(count), np.diff(starts))
    document = documents.astype(np.int64)
    offsets[:] = document & (TILE - 1)
    new_run = np.flatnonzero(_changes(term << 32 | document >> RUN_BITS))
    run_numbers[: len(new_run)] = document[new_run] >> RUN_BITS
    run_starts[: len(new_run)] = new_run
    runs_of[:] = np.bincount(term[new_run], minlength=count)

    bounds = _rounded_up(impacts, bound_scales[term], 255)
    if exact:
        impacts_out[:] = impacts
    else:
        bounds = _nearest(impacts, scales[term])
        impact_codes[:] = bounds
    _write_floors(starts, term, bounds, bound_scales, exact, floors)

    dense_of[:], listed_of[:] = -1, 0
    if not least_dense or not len(term):
        return len(new_run), 0, 0
    new_block = np.flatnonzero(_changes(term << 32 | document >> shift))
    most = np.maximum.reduceat(bounds, new_block)
    term, block = term[new_block], document[new_block] >> shift
    listed_of[:] = np.bincount(term, minlength=count)
    frequent = listed_of >= least_dense
    rows = int(np.count_nonzero(frequent))
    dense_of[frequent] = np.arange(rows)
    listed_of[frequent] = 0
    in_dense = frequent[term]
    dense[dense_of[term[in_dense]], block[in_dense]] = most[in_dense]
    listed = len(term) - int(np.count_nonzero(in_dense))
    list_blocks[:listed], list_bounds[:listed] = block[~in_dense], most[~in_dense]
    return len(new_run), listed, rows


def _write_floors(
    starts: NDArray[np.int64],
    term: NDArray[np.int64],
    bounds: NDArray[np.int64],
    scales: NDArray[np.float32],
    exact: bool,
    floors: NDArray[np.float32],
) -> None:
    """Set what the impacts at the ranks are at least; a code of ``exact`` is rounded up."""
    falling = bounds[np.lexsort((-bounds, term))]
    for line, rank in zip(floors, FLOOR_RANKS, strict=True):
        reached = np.flatnonzero(np.diff(starts) >= rank)
        codes = falling[starts[reached] + rank - 1]
        lowest = (codes - int(exact)).astype(np.float32) * scales[reached]
        line[reached] = lowest * np.float32(0.999999) if exact else lowest


def gather(
    first_run: NDArray[np.int64],
    run_numbers: NDArray[np.uint16],
    run_starts: NDArray[np.uint32],
    offsets: NDArray[np.uint16],
    impacts: NDArray[np.float32],
    impact_codes: NDArray[np.uint8],
    scales: NDArray[np.float32],
    first_run_number: int,
    last_run_number: int,
    starts: NDArray[np.int64],
    terms_out: NDArray[np.uint32],
    impacts_out: NDArray[np.float32],
) -> None:
    """Write documents of the runs in ``[first, last)`` as rows of a CSR, or only count them."""
    chosen = np.flatnonzero((run_numbers >= first_run_number) & (run_numbers < last_run_number))
    ends = np.minimum(run_starts.astype(np.int64), len(offsets))
    lengths = np.maximum(ends[chosen + 1] - ends[chosen], 0)
    shifts = ends[chosen] - (np.cumsum(lengths) - lengths)
    places = np.repeat(shifts, lengths) + np.arange(lengths.sum())
    runs = np.repeat(chosen, lengths)
    above = run_numbers[runs].astype(np.int64) >> (16 - RUN_BITS) << 16
    document = above + offsets[places] - (first_run_number << RUN_BITS)
    document = np.clip(document, 0, len(starts) - 2)  # whatever the file says
    if not len(terms_out):
        starts[1:] += np.bincount(document, minlength=len(starts) - 1)
        return
    order = np.argsort(document, kind="stable")
    places = places[order]
    terms = np.repeat(np.arange(len(first_run) - 1), np.diff(first_run))[runs[order]]
    terms_out[:] = terms
    if len(impacts):
        impacts_out[:] = impacts[places]
    else:
        impacts_out[:] = scales[terms] * impact_codes[places].astype(np.float32)
