"""The segments of an index with their rows and files; opens and writes them, loading no kernel."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.indexing.inverted.segments.segment import LAYOUT, Segment, open_segment
from sluice.indexing.inverted.settings import SegmentSettings
from sluice.indexing.live_rows import Rows
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
