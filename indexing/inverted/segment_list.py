"""The segments of an index: built, merged, written, and opened, which loads no kernel."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.processes import is_alive
from sluice.indexing.hits import Mask, Rows
from sluice.indexing.inverted.segments.build import build_segment, streamed_documents
from sluice.indexing.inverted.segments.segment import LAYOUT, MOST_BLOCKS, Segment, open_segment
from sluice.indexing.inverted.settings import SegmentSettings
from sluice.indexing.inverted.spooling.document_order import document_order
from sluice.indexing.inverted.spooling.spool import Spool
from sluice.indexing.storage.rows import write_array

COUNTS = ("documents", "terms", "postings", "blocks")


class Files(NamedTuple):
    """Where a segment's arrays lie; ``marks`` show whether they are unchanged."""

    folder: Path
    prefix: str
    marks: tuple[tuple[int, int], ...]  # of each array's file

    @classmethod
    def at(cls, folder: Path, prefix: str) -> Files:
        """Return the files as they are now."""
        paths = (folder / f"{prefix}{name}.npy" for name in LAYOUT)
        return cls(folder, prefix, tuple(map(_mark, paths)))


class Placed(NamedTuple):
    """A segment, the index's row of its first document, and its files where it has some."""

    segment: Segment
    first_row: int
    files: Files | None = None


Segments = tuple[Placed, ...]


def frequencies(segments: Segments, width: int) -> NDArray[np.int64]:
    """Return the documents of each term."""
    total = np.zeros(width, dtype=np.int64)
    for placed in segments:
        total[: placed.segment.terms] += placed.segment.frequencies
    return total


def joined(parts: Sequence[Segments], rows: Sequence[Rows]) -> Segments:
    """Return the segments of several indexes as those of one, whose rows ``rows`` has by index."""
    return tuple(
        Placed(_in_rows(placed, own), 0)
        for segments, own in zip(parts, rows, strict=True)
        for placed in segments
    )


def _in_rows(placed: Placed, rows: Rows) -> Segment:
    """Return a segment whose order is that of other rows, four bytes each; all else is shared."""
    segment = placed.segment
    own = rows[placed.first_row : placed.first_row + segment.documents]
    if len(segment.order):
        own = own[segment.order]
    return segment._replace(order=own.astype(np.uint32))


def write_segments(segments: Segments, folder: Path) -> tuple[list[dict[str, int]], Segments]:
    """Write the segments' files; return their counts, and the segments with their new places."""
    described, written = [], []
    for number, placed in enumerate(segments, 1):
        prefix = f"s{number:06d}-"
        for name in LAYOUT:
            _write(placed, name, folder / f"{prefix}{name}.npy")
        described.append({name: int(getattr(placed.segment, name)) for name in COUNTS})
        written.append(placed._replace(files=Files.at(folder, prefix)))
    return described, tuple(written)


def open_segments(folder: Path, described: Sequence[Any], settings: SegmentSettings) -> Segments:
    """Open what ``write_segments`` wrote, mapped into memory."""
    segments, row = list[Placed](), 0
    for number, counts in enumerate(described, 1):
        prefix = f"s{number:06d}-"
        segment = open_segment(folder, prefix, counts, settings.exact)
        segments.append(Placed(segment, row, Files.at(folder, prefix)))
        row += segment.documents
    return tuple(segments)


def _write(placed: Placed, name: str, target: Path) -> None:
    """Put one array of a segment into a folder: a link where possible, else a copy."""
    if placed.files is not None:
        source = placed.files.folder / f"{placed.files.prefix}{name}.npy"
        try:
            if _mark(source) == placed.files.marks[tuple(LAYOUT).index(name)]:
                os.link(source, target)
                return
        except OSError:  # gone, on another file system, or on one without links
            pass
    array = getattr(placed.segment, name)
    write_array(target, [array], array.shape, array.dtype)


def _mark(path: Path) -> tuple[int, int]:
    """Return what identifies a file, not just its path: inode and time of writing."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


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
