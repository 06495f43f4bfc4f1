"""Kernels that turn documents into a segment: by block, by term, and their bounds."""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sluice.indexing.inverted.segments.segment import (
    FLOOR_RANKS,
    HASH,
    RUN_BITS,
    TILE,
    UNHASH,
    WINDOW,
)
from sluice.indexing.kernels.ranking import put

_END = np.uint32(0xFFFFFFFF)  # padding of a directory: above every entry but one, never a hit
_FIRST_RANK, _SECOND_RANK, _THIRD_RANK = FLOOR_RANKS


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def survey(
    terms: NDArray[np.uint32],
    impacts: NDArray[np.float32],
    frequencies: NDArray[np.int64],
    peaks: NDArray[np.float32],
) -> None:
    """Count each term's postings and keep its largest impact."""
    for i in range(len(terms)):
        term = terms[i]
        frequencies[term] += 1
        peaks[term] = max(peaks[term], impacts[i])


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _rounded_up(impact: np.float32, scale: np.float32, most: int) -> Any:
    """Return the least code whose impact is not below ``impact``, at most ``most``."""
    code = np.int64(np.ceil(impact / scale))
    if np.float32(code) * scale < impact:
        code += 1
    return min(max(code, 1), most)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _nearest(impact: np.float32, scale: np.float32) -> Any:
    """Return the 8-bit code nearest to ``impact``; an impact never becomes zero."""
    return min(max(np.int64(np.rint(impact / scale)), 1), 255)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
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
    """Write the directories and codes of whole blocks of documents; return the places used.

    ``entries_out`` receives each block's entries; ``directory`` has room for one entry a posting
    and the padding.
    """
    documents = len(starts) - 1
    size = 1 << shift
    most = (1 << code_bits) - 1
    cursors = np.zeros(len(code_scales), dtype=np.int32)
    room = 0
    for first in range(0, documents, size):
        room = max(room, starts[min(first + size, documents)] - starts[first])
    distinct = np.empty(room, dtype=np.uint32)
    hashed = np.empty(room, dtype=np.uint32)
    place = 0
    for block in range((documents + size - 1) // size):
        first, last = block * size, min(block * size + size, documents)
        count = 0
        for i in range(starts[first], starts[last]):
            term = terms[i]
            if cursors[term] == 0:
                distinct[count] = term
                count += 1
            cursors[term] += 1
        _sort_hashed(distinct, hashed, count, bucket_bits, buckets[block])
        _write_directory(hashed[:count], cursors, directory[place:], tags[place:])
        for document in range(first, last):
            for i in range(starts[document], starts[document + 1]):
                term = terms[i]
                if exact:
                    value = _rounded_up(impacts[i], code_scales[term], most)
                else:
                    value = _nearest(impacts[i], code_scales[term])
                codes[starts[first] + cursors[term]] = ((document - first) << code_bits) | value
                cursors[term] += 1
        for entry in range(count):
            cursors[distinct[entry]] = 0
        entries_out[block] = count
        place += count + WINDOW
    return place


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _write_directory(
    hashed: NDArray[np.uint32],
    cursors: NDArray[np.int32],
    directory: NDArray[np.uint32],
    tags: NDArray[np.uint16],
) -> None:
    """Write a block's entries and padding; ``cursors`` go from a term's postings to its place."""
    start, count = 0, len(hashed)
    for entry in range(count):
        code = hashed[entry]
        term = _term_of(code)
        directory[entry] = (code & np.uint32(0xFFFF0000)) | np.uint32(start)
        if len(tags):
            tags[entry] = code & np.uint32(0xFFFF)
        postings = cursors[term]
        cursors[term] = start
        start += postings
    for entry in range(count, count + WINDOW):
        directory[entry] = _END
        if len(tags):
            tags[entry] = 0xFFFF


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def hashed_term(term: int) -> Any:
    """Return a term's place in the directories: its hashed lower half, then its upper half."""
    low = (np.uint32(term) * np.uint32(HASH)) & np.uint32(0xFFFF)
    return (low << np.uint32(16)) | (np.uint32(term) >> np.uint32(16))


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _term_of(code: np.uint32) -> Any:
    low = ((code >> np.uint32(16)) * np.uint32(UNHASH)) & np.uint32(0xFFFF)
    return ((code & np.uint32(0xFFFF)) << np.uint32(16)) | low


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _sort_hashed(
    distinct: NDArray[np.uint32],
    hashed: NDArray[np.uint32],
    count: int,
    bucket_bits: int,
    buckets: NDArray[np.uint16],
) -> None:
    """Sort the hashes of ``distinct`` into ``hashed``; ``buckets`` becomes where each one begins.

    A counting sort by the upper bits, then insertion within a bucket of a few.
    """
    right = np.uint32(32 - bucket_bits)
    tally = np.zeros((1 << bucket_bits) + 1, dtype=np.int64)
    for i in range(count):
        tally[np.int64(hashed_term(distinct[i]) >> right) + 1] += 1
    for bucket in range(1 << bucket_bits):
        tally[bucket + 1] += tally[bucket]
    put(buckets, tally)
    for i in range(count):
        code = hashed_term(distinct[i])
        bucket = np.int64(code >> right)
        place = tally[bucket]
        tally[bucket] += 1
        while place > np.int64(buckets[bucket]) and hashed[place - 1] > code:
            hashed[place] = hashed[place - 1]
            place -= 1
        hashed[place] = code


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
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
    count = len(places)
    for document in range(len(starts) - 1):
        for i in range(starts[document], starts[document + 1]):
            term = np.int64(terms[i]) - first_term
            if 0 <= term < count:
                place = places[term]
                documents_out[place] = np.uint32(first_document + document)
                impacts_out[place] = impacts[i]
                places[term] = place + 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
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
    """Write what is kept of a range of terms; return the runs, listed blocks and dense rows used.

    ``runs_of`` and ``listed_of`` receive counts a term, ``dense_of`` the row within ``dense`` or
    -1. A term in at least ``least_dense`` blocks gets a dense row; none does where that is 0.
    """
    tally = np.zeros(256, dtype=np.int64)
    run, listed, rows = 0, 0, 0
    for term in range(len(starts) - 1):
        first, last = starts[term], starts[term + 1]
        first_listed, block, last_run = listed, np.int64(-1), np.int64(-1)
        dense_of[term] = -1
        runs_of[term] = run
        for i in range(first, last):
            document = np.int64(documents[i])
            offsets[i] = document & (TILE - 1)
            if document >> RUN_BITS != last_run:
                last_run = document >> RUN_BITS
                run_numbers[run] = last_run
                run_starts[run] = i
                run += 1
            bound = _rounded_up(impacts[i], bound_scales[term], 255)
            if exact:
                impacts_out[i] = impacts[i]
            else:
                bound = _nearest(impacts[i], scales[term])
                impact_codes[i] = bound
            tally[bound] += 1
            if least_dense > 0:
                if document >> shift != block:
                    block = document >> shift
                    list_blocks[listed] = block
                    list_bounds[listed] = bound
                    listed += 1
                elif bound > list_bounds[listed - 1]:
                    list_bounds[listed - 1] = bound
        runs_of[term] = run - runs_of[term]
        if last - first >= _FIRST_RANK:
            _find_floors(tally, bound_scales[term], exact, floors[:, term])
        if last > first:
            tally[:] = 0
        if least_dense > 0 and listed - first_listed >= least_dense:
            row = dense[rows]
            for place in range(first_listed, listed):
                row[list_blocks[place]] = list_bounds[place]
            dense_of[term] = rows
            rows += 1
            listed = first_listed
        listed_of[term] = listed - first_listed
    return run, listed, rows


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _find_floors(
    tally: NDArray[np.int64], scale: np.float32, exact: bool, floors: NDArray[np.float32]
) -> None:
    """Set what the impacts at the ranks are at least; a code of ``exact`` is rounded up."""
    passed, rank = 0, 0
    for code in range(255, 0, -1):
        passed += tally[code]
        floor = np.float32(code - 1) * scale * np.float32(0.999999)
        if not exact:
            floor = np.float32(code) * scale
        if rank == 0 and passed >= _FIRST_RANK:
            floors[0] = floor
            rank = 1
        if rank == 1 and passed >= _SECOND_RANK:
            floors[1] = floor
            rank = 2
        if rank == 2 and passed >= _THIRD_RANK:
            floors[2] = floor
            break


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
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
    """Write documents of the runs in ``[first, last)`` as rows of a CSR, or only count them.

    ``starts`` is int64 [documents + 1], zero but for a first call without room in the outputs,
    which counts; the second call writes. Terms ascend within a document.
    """
    counting = len(terms_out) == 0
    base = first_run_number << RUN_BITS
    for term in range(len(first_run) - 1):
        run = first_run[term]
        end = first_run[term + 1]
        if end - run > 8:  # many runs: begin at the first in range
            run += np.searchsorted(run_numbers[run:end], first_run_number)
        while run < end and run_numbers[run] < last_run_number:
            if run_numbers[run] >= first_run_number:
                above = (np.int64(run_numbers[run]) >> (16 - RUN_BITS)) << 16
                for i in range(run_starts[run], min(run_starts[run + 1], len(offsets))):
                    document = above + np.int64(offsets[i]) - base
                    document = min(max(document, 0), len(starts) - 2)  # whatever the file says
                    if counting:
                        starts[document + 1] += 1
                    else:
                        place = starts[document]
                        terms_out[place] = term
                        if len(impacts):
                            impacts_out[place] = impacts[i]
                        else:
                            impacts_out[place] = scales[term] * np.float32(impact_codes[i])
                        starts[document] = place + 1
            run += 1
