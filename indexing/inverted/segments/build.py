"""Builds a segment from documents, streamed, on all cores; reads documents back from segments.

Three passes over the documents: one counts; one writes the blocks, a stretch of documents at a
time; one writes the terms, a range of terms at a time (a counting sort by term of which each pass
holds one range). Besides the result and the spool, that needs about 40 bytes for each of
``RANGE`` postings (1.3 GB; half of it for one thread), whatever the size of the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.errors import IndexFormatError
from sluice.indexing.inverted.segments.choice import kernels_for
from sluice.indexing.inverted.segments.segment import (
    FLOOR_RANKS,
    GROUP,
    LAYOUT,
    MOST_BLOCK_POSTINGS,
    MOST_BLOCKS,
    RUN_BITS,
    RUNS_PER_TILE_BITS,
    TILE,
    UNHASH,
    WINDOW,
    Segment,
)
from sluice.indexing.inverted.spooling.spool import Spool
from sluice.indexing.kernels.calls import in_order, thread_count
from sluice.indexing.storage.rows import GrowingArray, write_array

Sparse: TypeAlias = "sparse.csr_array[Any]"  # a text: scipy below 1.15 has no [Any]
RUNS_AT_ONCE = 1 << RUNS_PER_TILE_BITS
ONE_BY_ONE = 16  # documents of a run that are read one by one: a run takes milliseconds


def stored_documents(segment: Segment, rows: NDArray[np.int64]) -> Sparse:
    """Return the impacts of rows of a segment (from 0), float32 ``[len(rows), terms]``."""
    places = rows
    if len(segment.order):
        inverse = np.empty(segment.documents, dtype=np.int64)
        inverse[segment.order] = np.arange(segment.documents)
        places = inverse[rows]
    runs, which = np.unique(places >> RUN_BITS, return_inverse=True)
    if segment.blocks and len(rows) <= ONE_BY_ONE * len(runs):
        return _by_block(segment, places)
    none: Any = sparse.csr_array((0, segment.terms), dtype=np.float32)
    back = np.empty(len(rows), dtype=np.int64)
    parts, done = [none], 0
    breaks = np.flatnonzero(np.diff(runs, prepend=-2) != 1).tolist()
    stretches = [
        (first, min(first + RUNS_AT_ONCE, last))
        for start, last in zip(breaks, [*breaks[1:], len(runs)], strict=True)
        for first in range(start, last, RUNS_AT_ONCE)
    ]
    for first, last in stretches:
        here = np.flatnonzero((which >= first) & (which < last))
        matrix = _gathered(segment, int(runs[first]), int(runs[last - 1]) + 1)
        parts.append(matrix[places[here] - (int(runs[first]) << RUN_BITS)])
        back[here] = np.arange(done, done + len(here))
        done += len(here)
    stacked: Sparse = sparse.vstack(parts, format="csr")
    return stacked if (back == np.arange(len(rows))).all() else stacked[back]


def _by_block(segment: Segment, places: NDArray[np.int64]) -> Sparse:
    """Return documents that lie far apart: the terms of each from its block, then their impacts."""
    size, code_bits = segment.block_size, int(segment.shape[2])
    found, counts = [np.empty(0, np.int64)], np.zeros(len(places) + 1, dtype=np.int64)
    for at, document in enumerate(places.tolist()):
        block = document // size
        codes = segment.codes[segment.block_starts[block] : segment.block_starts[block + 1]]
        hits = np.flatnonzero(codes >> code_bits == document % size)
        first, last = segment.directory_starts[block : block + 2] + WINDOW * block
        directory = segment.directory[first:last].astype(np.int64)
        entries = np.searchsorted(directory & 0xFFFF, hits, side="right") - 1
        terms = ((directory[entries] >> 16) * UNHASH) & 0xFFFF
        if len(segment.directory_tags):
            terms |= segment.directory_tags[first + entries].astype(np.int64) << 16
        found.append(np.sort(terms))
        counts[at + 1] = len(terms)
    terms, documents = np.concatenate(found), np.repeat(places, counts[1:])
    try:
        begun, ended = segment.first_run[terms], segment.first_run[terms + 1]
        runs = _first_places(segment.run_numbers, begun, ended, documents >> RUN_BITS)
        begun, ended = segment.run_starts[runs], segment.run_starts[runs + 1]
        own = _first_places(segment.offsets, begun, ended, documents & (TILE - 1))
        if (segment.offsets[own] != documents & (TILE - 1)).any():
            raise IndexError
    except IndexError:
        raise IndexFormatError(
            "an inverted index says one thing by block and another by term; rebuild it"
        ) from None
    if len(segment.impacts):
        impacts = segment.impacts[own]
    else:
        impacts = segment.scales[terms] * segment.impact_codes[own].astype(np.float32)
    shape = (len(places), segment.terms)
    matrix: Sparse = sparse.csr_array((impacts, terms, np.cumsum(counts)), shape=shape)
    matrix.has_canonical_format = True
    return matrix


def _first_places(
    values: NDArray[Any], begun: NDArray[Any], ended: NDArray[Any], wanted: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the first place of each range ``[begun, ended)`` whose value is at least ``wanted``.

    Values ascend within a range.
    """
    low, high = begun.astype(np.int64), ended.astype(np.int64)
    while (low < high).any():
        middle = (low + high) >> 1
        below = (low < high) & (values[np.minimum(middle, len(values) - 1)] < wanted)
        low, high = np.where(below, middle + 1, low), np.where(below, high, middle)
    return low


def streamed_documents(segment: Segment) -> Iterator[Sparse]:
    """Yield all documents of a segment in row order, a tile or less at a time."""
    if len(segment.order):
        spool = Spool()
        for chunk in _stretches(segment):
            spool.append(chunk)
        spool.terms = segment.terms
        yield from spool.reordered(np.argsort(segment.order)).matrices()
    else:
        yield from _stretches(segment)


def _stretches(segment: Segment) -> Iterator[Sparse]:
    runs = -(-segment.documents >> RUN_BITS)
    for first in range(0, runs, RUNS_AT_ONCE):
        yield _gathered(segment, first, min(first + RUNS_AT_ONCE, runs))


def _gathered(segment: Segment, first_run: int, last_run: int) -> Sparse:
    """Return the documents of the runs ``[first, last)``."""
    count = min(last_run << RUN_BITS, segment.documents) - (first_run << RUN_BITS)
    starts = np.zeros(count + 1, dtype=np.int64)
    by_term = (
        segment.first_run, segment.run_numbers, segment.run_starts, segment.offsets,
        segment.impacts, segment.impact_codes, segment.scales, first_run, last_run,
    )  # fmt: skip
    kernels = kernels_for(segment.postings)
    kernels.gather(*by_term, starts, np.empty(0, np.uint32), np.empty(0, np.float32))
    np.cumsum(starts, out=starts)
    terms = np.empty(int(starts[-1]), dtype=np.uint32)
    impacts = np.empty(len(terms), dtype=np.float32)
    if len(terms):
        kernels.gather(*by_term, starts.copy(), terms, impacts)
    shape = (count, segment.terms)
    matrix: Sparse = sparse.csr_array((impacts, terms.astype(np.int64), starts), shape=shape)
    matrix.has_canonical_format = True
    return matrix


STRETCH = 1 << 14  # documents written by block at a time; a multiple of every block size
RANGE = 1 << 25  # postings written by term at a time, by all threads together
DENSE_SHARE = 0.1  # of the blocks: a term in more of them has a dense row of bounds
BUCKET_ENTRIES = 6  # directory entries that share a bucket, on average
SMALL_CORPUS = 400_000  # documents; above it larger blocks, because the bound pass is linear
SMALLEST = np.float32(np.finfo(np.float32).tiny)  # of a scale: below it float32 loses precision


def build_segment(
    spool: Spool,
    terms: int,
    *,
    exact: bool = True,
    block_size: int | None = None,
    order: NDArray[np.uint32] | None = None,
    folder: Path | None = None,
) -> Segment:
    """Return the segment of a spool's documents over a vocabulary of at least ``terms``.

    ``order`` lists the spool's rows in the order in which the segment shall keep them. With a
    ``folder`` (empty) the arrays are files there, else they are in memory.
    """
    source = spool if order is None else spool.reordered(order)
    terms = max(terms, spool.terms)
    documents = len(source)
    kernels = kernels_for(source.postings)
    frequencies = np.zeros(terms, dtype=np.int64)
    peaks = np.zeros(terms, dtype=np.float32)
    for first in range(0, documents, STRETCH):
        part = source.documents(first, min(first + STRETCH, documents))
        kernels.survey(*part[1:], frequencies, peaks)
    shift = _block_shift(source, block_size)
    code_bits = 8 if not exact else 16 - max(shift, 0)
    bounds = _scale(peaks, 255)
    codes = bounds if not exact else _scale(peaks, (1 << code_bits) - 1)
    scales = np.ones(terms, dtype=np.float32) if exact else bounds
    sink: _Sink = _Memory() if folder is None else _Files(folder)
    try:
        bucket_bits = _write_blocks(kernels, source, sink, exact, shift, code_bits, codes)
        _write_terms(kernels, source, sink, exact, shift, frequencies, scales, bounds)
        sink.append("scales", scales)
        sink.append("code_scales", codes)
        sink.append("bound_scales", bounds)
        sink.append("order", np.empty(0, np.uint32) if order is None else order.astype(np.uint32))
        sink.append("shape", np.array([documents, max(shift, 0), code_bits, bucket_bits]))
        return sink.finish()
    finally:
        sink.close()


def _scale(peaks: NDArray[np.float32], most: int) -> NDArray[np.float32]:
    scales = np.maximum(peaks / np.float32(most), SMALLEST)
    return np.where(peaks > 0, scales, np.float32(1)).astype(np.float32)


def _block_shift(spool: Spool, block_size: int | None) -> int:
    """Return log2 of the block size; -1 if even single documents have too many terms."""
    documents, starts = len(spool), spool.starts()
    size = block_size or (16 if documents < SMALL_CORPUS else 32)
    shift = max(size.bit_length() - 1, (-(-documents // MOST_BLOCKS) - 1).bit_length())
    while shift >= 0:
        ends = starts[np.minimum(np.arange(0, documents + (1 << shift), 1 << shift), documents)]
        if np.diff(ends).max(initial=0) <= MOST_BLOCK_POSTINGS:
            break
        shift -= 1
    return shift if documents <= MOST_BLOCKS << max(shift, 0) else -1


def _write_blocks(
    kernels: ModuleType,
    spool: Spool,
    sink: _Sink,
    exact: bool,
    shift: int,
    code_bits: int,
    code_scales: NDArray[np.float32],
) -> int:
    """Write what is kept by block; return log2 of the buckets."""
    documents = len(spool) if shift >= 0 else 0
    bucket_bits = _bucket_bits(spool, shift)
    tagged = len(code_scales) > 1 << 16

    def written(first: int) -> dict[str, NDArray[Any]]:
        part = spool.documents(first, min(first + STRETCH, documents))
        blocks = -(-(len(part[0]) - 1) >> shift)
        entries = np.empty(blocks, dtype=np.int64)
        directory = np.empty(len(part[1]) + WINDOW * blocks, dtype=np.uint32)
        tags = np.empty(len(directory) if tagged else 0, dtype=np.uint16)
        buckets = np.empty((blocks, (1 << bucket_bits) + 1), dtype=np.uint16)
        codes = np.empty(len(part[1]), dtype=np.uint16)
        used = kernels.fill_blocks(
            *part, exact, shift, code_bits, bucket_bits, code_scales,
            entries, directory, tags, buckets, codes,
        )  # fmt: skip
        ends = np.arange(1 << shift, (blocks + 1) << shift, 1 << shift)
        return {
            "directory": directory[:used],
            "directory_tags": tags[:used],
            "buckets": buckets,
            "codes": codes,
            "directory_starts": entries,
            "block_starts": np.diff(part[0][np.minimum(ends, len(part[0]) - 1)], prepend=0),
        }

    counts: dict[str, list[NDArray[Any]]] = {"directory_starts": [], "block_starts": []}
    for arrays in in_order(written, range(0, documents, STRETCH)):
        for name, array in arrays.items():
            if name in counts:
                counts[name].append(array)
            else:
                sink.append(name, array)
    for name, parts in counts.items():
        zero = np.zeros(1, dtype=np.int64)
        sink.append(name, np.cumsum(np.concatenate([zero, *parts])))
    sink.shapes["buckets"] = ((1 << bucket_bits) + 1,)
    return bucket_bits


def _bucket_bits(spool: Spool, shift: int) -> int:
    """Return log2 of the buckets, from the entries of a few sampled blocks."""
    documents = len(spool) if shift >= 0 else 0
    entries = [
        len(np.unique(spool.documents(first, min(first + (1 << shift), documents))[1]))
        for first in np.linspace(0, max(documents - (1 << max(shift, 0)), 0), 8).astype(int)
        if documents
    ]
    mean = float(np.mean(entries or [1]))
    return round(float(np.log2(max(mean / BUCKET_ENTRIES, 1.0))))


def _write_terms(
    kernels: ModuleType,
    spool: Spool,
    sink: _Sink,
    exact: bool,
    shift: int,
    frequencies: NDArray[np.int64],
    scales: NDArray[np.float32],
    bound_scales: NDArray[np.float32],
) -> None:
    """Write what is kept by term, and the bounds."""
    terms, documents = len(frequencies), len(spool)
    blocks = -(-documents >> shift) if shift >= 0 else 0
    least_dense = max(int(np.ceil(DENSE_SHARE * blocks)), 1) if blocks else 0
    padded = -(-blocks // GROUP) * GROUP
    floors = np.zeros((len(FLOOR_RANKS), terms), dtype=np.float32)

    def written(part: tuple[int, int]) -> dict[str, NDArray[Any]]:
        first_term, last_term = part
        counts = frequencies[first_term:last_term]
        starts = np.concatenate([[0], np.cumsum(counts)])
        size = int(starts[-1])
        numbers, impacts = np.empty(size, np.uint32), np.empty(size, np.float32)
        places = starts[:-1].copy()
        for first in range(0, documents, STRETCH):
            chunk = spool.documents(first, min(first + STRETCH, documents))
            kernels.scatter(*chunk, first, first_term, places, numbers, impacts)
        rows = int(np.count_nonzero(counts >= least_dense)) if least_dense else 0
        arrays: dict[str, NDArray[Any]] = {
            "offsets": np.empty(size, np.uint16),
            "impacts": np.empty(size if exact else 0, np.float32),
            "impact_codes": np.empty(0 if exact else size, np.uint8),
            "first_run": np.empty(len(counts), np.int64),
            "run_numbers": np.empty(size, np.uint16),
            "run_starts": np.empty(size, np.int64),
            "list_starts": np.empty(len(counts), np.int64),
            "list_blocks": np.empty(size if blocks else 0, np.uint16),
            "list_bounds": np.empty(size if blocks else 0, np.uint8),
            "dense_rows": np.empty(len(counts), np.int32),
            "dense": np.zeros((rows, padded), np.uint8),
        }
        runs, listed, dense = kernels.digest(
            starts, numbers, impacts, exact, max(shift, 0),
            scales[first_term:last_term], bound_scales[first_term:last_term], least_dense,
            *arrays.values(), floors[:, first_term:last_term],
        )  # fmt: skip
        used = {"run_numbers": runs, "run_starts": runs, "list_blocks": listed}
        used |= {"list_bounds": listed, "dense": dense}
        for name, count in used.items():
            arrays[name] = arrays[name][:count].copy()
        return arrays

    sink.shapes["dense"] = (padded,)
    runs, listed, dense_rows = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)], []
    postings = dense = 0
    for arrays in in_order(written, _ranges(frequencies)):
        runs.append(arrays.pop("first_run"))
        listed.append(arrays.pop("list_starts"))
        numbers = arrays.pop("dense_rows")
        dense_rows.append(np.where(numbers >= 0, numbers + dense, -1))
        arrays["run_starts"] += postings
        postings += len(arrays["offsets"])
        dense += len(arrays["dense"])
        for name, array in arrays.items():
            sink.append(name, array)
    sink.append("run_starts", np.array([postings]))
    sink.append("first_run", np.cumsum(np.concatenate(runs)))
    sink.append("list_starts", np.cumsum(np.concatenate(listed)))
    sink.append("dense_rows", np.concatenate(dense_rows or [np.empty(0, np.int32)]))
    sink.append("floors", floors)


def _ranges(frequencies: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield ranges of terms, of about as many postings as one of the threads may hold."""
    size = max(RANGE // max(thread_count(), 2), 1)
    ends, first = np.cumsum(frequencies), 0
    while first < len(frequencies):
        before = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, before + size, side="right")), first + 1)
        yield first, last
        first = last


class _Sink(Protocol):
    """Where a segment's arrays grow; ``shapes`` are the lengths of their second axes."""

    shapes: dict[str, tuple[int, ...]]

    def append(self, name: str, array: NDArray[Any]) -> None: ...

    def finish(self) -> Segment: ...

    def close(self) -> None: ...


class _Memory:
    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in LAYOUT}

    def append(self, name: str, array: NDArray[Any]) -> None:
        self._parts[name].append(array)

    def finish(self) -> Segment:
        arrays = {}
        for name, (dtype, _) in LAYOUT.items():
            parts = self._parts.pop(name)
            if not parts:
                joined = np.empty((0, *self.shapes.get(name, ())), dtype)
            elif len(parts) == 1:
                joined = np.ascontiguousarray(parts[0], dtype)
            else:
                joined = np.concatenate(parts).astype(dtype, copy=False)
            joined.setflags(write=False)
            arrays[name] = joined
        return Segment(**arrays)

    def close(self) -> None:
        """Nothing is open."""


class _Files:
    def __init__(self, folder: Path) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._folder = folder
        self._open: dict[str, GrowingArray] = {}

    def append(self, name: str, array: NDArray[Any]) -> None:
        if name not in self._open:
            dtype = LAYOUT[name][0]
            columns = array.shape[1:]
            self._open[name] = GrowingArray(self._folder / f"{name}.npy", dtype, columns)
        self._open[name].append(array)

    def finish(self) -> Segment:
        for growing in self._open.values():
            growing.close()
        arrays = {}
        for name, (dtype, dimensions) in LAYOUT.items():
            path = self._folder / f"{name}.npy"
            if name not in self._open:
                shape = (0, *self.shapes.get(name, ()))
                write_array(path, [], shape, dtype)
            arrays[name] = open_array(path, dtype, (None,) * dimensions)
        return Segment(**arrays)

    def close(self) -> None:
        for growing in self._open.values():
            growing.abandon()
