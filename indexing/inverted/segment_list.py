"""Builds, merges, writes and opens the segments of an index."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.machine import is_alive
from sluice.indexing.inverted.segment_files import Files, Placed, Segments
from sluice.indexing.inverted.segments.build import build_segment
from sluice.indexing.inverted.segments.documents import streamed_documents
from sluice.indexing.inverted.segments.segment import MOST_BLOCKS, Segment
from sluice.indexing.inverted.settings import SegmentSettings
from sluice.indexing.inverted.spooling.document_order import document_order
from sluice.indexing.inverted.spooling.spool import Spool
from sluice.indexing.live_rows import Mask

SEGMENT_DOCUMENTS = 32 * MOST_BLOCKS  # at most, of one segment at the block size of large ones
SEGMENT_POSTINGS = 1 << 30
IN_MEMORY = 1 << 23  # postings of a new segment that is kept in memory; larger ones are files
SCRATCH = "sluice-index-"
Sparse: TypeAlias = "sparse.csr_array[Any]"  # a text: scipy below 1.15 has no [Any]


def room_for(spool: Spool, ends: NDArray[np.int64], first: int) -> int:
    """Return the document before which a spool is full, from ``first``; at least one fits an empty.

    ``ends`` are the postings of the documents added so far, each included.
    """
    begun = int(ends[first - 1]) if first else 0
    postings = begun + SEGMENT_POSTINGS - spool.postings
    last = int(np.searchsorted(ends, postings, side="right"))
    return max(min(first + SEGMENT_DOCUMENTS - len(spool), last), first + (len(spool) == 0))


def extended(segments: Segments, spool: Spool, width: int, settings: SegmentSettings) -> Segments:
    """Return the segments and that of a spool, merged with the small ones before it.

    A segment is merged when it is less than twice as large: so the number stays logarithmic.
    """
    remaining = list(segments)
    while remaining and _worth_merging(remaining[-1].segment, spool):
        merged = Spool()
        for chunk in chain(streamed_documents(remaining.pop().segment), spool.matrices()):
            merged.append(chunk)
        spool = merged
    first_row = remaining[-1].first_row + remaining[-1].segment.documents if remaining else 0
    return (*remaining, _built(spool, first_row, width, settings))


def rebuilt(
    segments: Segments, allowed: Mask | None, width: int, settings: SegmentSettings
) -> Segments:
    """Return new segments of the rows that ``allowed`` marks, as few as their limits allow."""
    spool, new, first_row = Spool(), list[Placed](), 0
    for chunk in _allowed_documents(segments, allowed):
        full = len(spool) + chunk.shape[0] > SEGMENT_DOCUMENTS
        if len(spool) and (full or spool.postings + chunk.nnz > SEGMENT_POSTINGS):
            new.append(_built(spool, first_row, width, settings))
            first_row, spool = first_row + len(spool), Spool()
        spool.append(chunk)
    if len(spool):
        new.append(_built(spool, first_row, width, settings))
    return tuple(new)


def _built(spool: Spool, first_row: int, width: int, settings: SegmentSettings) -> Placed:
    """Build one segment, in memory or in a temporary folder that goes with it."""
    order, folder = None, None
    if settings.top_terms is not None or not settings.exact:
        from sluice.indexing.inverted.spooling.approximation import heaviest_terms, measured_overlap
    if settings.top_terms is not None:
        pruned = heaviest_terms(spool, settings.top_terms)
        measured_overlap(spool, pruned, f"top_terms={settings.top_terms}")
        spool = pruned
    if not settings.exact:
        measured_overlap(spool, None, settings.fidelity)
    if settings.order != "input":
        order = document_order(spool, width, settings.order)
    if spool.postings > IN_MEMORY:
        folder = _scratch_folder()
    try:
        segment = build_segment(
            spool, width, exact=settings.exact, block_size=settings.block_size, order=order,
            folder=folder,
        )  # fmt: skip
    except BaseException:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if folder is None:
        return Placed(segment, first_row)
    # The files live as long as one of the arrays that map them.
    weakref.finalize(segment.codes, shutil.rmtree, folder, ignore_errors=True)
    return Placed(segment, first_row, Files.at(folder, ""))


def _worth_merging(segment: Segment, spool: Spool) -> bool:
    documents = segment.documents + len(spool)
    postings = segment.postings + spool.postings
    small = segment.documents < 2 * len(spool) or segment.postings < 2 * spool.postings
    return small and documents <= SEGMENT_DOCUMENTS and postings <= SEGMENT_POSTINGS


def _allowed_documents(segments: Segments, allowed: Mask | None) -> Iterable[Sparse]:
    for placed in segments:
        row = placed.first_row
        for chunk in streamed_documents(placed.segment):
            count = int(chunk.shape[0])
            yield chunk if allowed is None else chunk[allowed[row : row + count]]
            row += count


def _scratch_folder() -> Path:
    """Make a temporary folder for a segment's files; those of killed processes are removed."""
    for old in _scratch_folders():
        process = old.name.removeprefix(SCRATCH).split("-")[0]
        if process.isdigit() and not is_alive(int(process)):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-"))


def _scratch_folders() -> Iterator[Path]:
    return Path(tempfile.gettempdir()).glob(f"{SCRATCH}*-*")
