"""Inverted lists from centroids to documents, in segments that grow, shrink and are stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.errors import IndexFormatError
from sluice.indexing.kernels.calls import lent
from sluice.indexing.live_rows import Mask
from sluice.indexing.storage.arrays import fact, write_array

MOST_TOGETHER = 1 << 27  # documents times centroids' entries joined in memory; 512 MiB of rows


class Lists(NamedTuple):
    """The documents of each centroid: ``rows[starts[c] : starts[c + 1]]``, ascending, once each."""

    starts: Any  # int64 [centroids + 1]
    rows: Any  # int32, counted from the segment's first
    documents: int


class CentroidLists:
    """Segments of lists, end to end; a document is in the lists of all its tokens' centroids."""

    def __init__(self, centroids: int) -> None:
        self._centroids = centroids
        self._segments: list[Lists] = []

    def __len__(self) -> int:
        return sum(segment.documents for segment in self._segments)

    @property
    def entries(self) -> int:
        """Number of documents in lists, over all lists."""
        return sum(len(segment.rows) for segment in self._segments)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(part.starts.nbytes + part.rows.nbytes for part in self._segments)

    def segments(self) -> Iterator[tuple[int, Lists]]:
        """Yield each segment with its first row."""
        first = 0
        for segment in self._segments:
            yield first, segment
            first += segment.documents

    def append(self, codes: NDArray[np.int32], bounds: NDArray[np.int64]) -> None:
        """Add documents, given their tokens' centroids."""
        from sluice.indexing.tokens.gather.kernel import fill_lists

        counts = np.zeros(self._centroids, np.int64)
        fill_lists(codes, bounds, self._marks(), counts, np.empty(0, np.int32))
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        rows = np.empty(int(starts[-1]), np.int32)
        fill_lists(codes, bounds, self._marks(), starts[:-1].copy(), rows)
        added = Lists(starts, rows, len(bounds) - 1)
        # Joined like the digits of a binary counter: each entry is copied O(log) times.
        parts = [added]
        while self._segments:
            total = sum(part.documents for part in parts)
            entries = sum(len(part.rows) for part in parts) + len(self._segments[-1].rows)
            if self._segments[-1].documents > total or entries > MOST_TOGETHER:
                break
            parts.insert(0, self._segments.pop())
        self._segments.append(parts[0] if len(parts) == 1 else self._joined(parts))

    def keep_only(self, allowed: Mask) -> None:
        """Drop the rows that ``allowed`` excludes; the others move up in order."""
        remaining = []
        for first, segment in self.segments():
            mask = allowed[first : first + segment.documents]
            if mask.all():
                remaining.append(segment)
            elif mask.any():
                moved = np.cumsum(mask, dtype=np.int64) - 1
                kept = mask[segment.rows]
                passed = np.concatenate([[0], np.cumsum(kept)])
                rows = moved[segment.rows[kept]].astype(np.int32)
                remaining.append(Lists(passed[segment.starts], rows, int(mask.sum())))
        self._segments = remaining

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the lists of all segments; return the facts ``read`` needs."""
        sizes = [part.documents for part in self._segments]
        for name, dtype in (("starts", np.int64), ("rows", np.int32)):
            arrays = [getattr(part, name) for part in self._segments]
            total = sum(map(len, arrays))
            write_array(folder / f"gather_{name}.npy", arrays, (total,), dtype)
        entries = [len(part.rows) for part in self._segments]
        return {"segments": sizes, "entries": entries}

    @classmethod
    def read(cls, centroids: int, folder: Path, facts: Mapping[str, Any]) -> Self:
        """Open what ``write`` wrote, the rows mapped into memory."""
        opened = cls(centroids)
        sizes, entries = (fact(facts, name, list, folder) for name in ("segments", "entries"))
        good = all(isinstance(size, int) and size >= 0 for size in (*sizes, *entries))
        if not good or len(sizes) != len(entries):
            raise IndexFormatError(f"{folder}: the gather's segments are not sizes; rebuild")
        wide = centroids + 1
        starts = open_array(
            folder / "gather_starts.npy", np.int64, (len(sizes) * wide,), mapped=False
        )
        rows = open_array(folder / "gather_rows.npy", np.int32, (sum(entries),))
        done = 0
        for place, (size, count) in enumerate(zip(sizes, entries, strict=True)):
            edges = starts[place * wide : (place + 1) * wide]
            part = rows[done : done + count]
            outside = count and (int(part.min()) < 0 or int(part.max()) >= size)
            if edges[0] or edges[-1] != count or (np.diff(edges) < 0).any() or outside:
                raise IndexFormatError(
                    f"{folder / 'gather_starts.npy'}: not lists of {size:,} documents; rebuild"
                )
            opened._segments.append(Lists(lent(edges), lent(part), size))
            done += count
        return opened

    def _marks(self) -> NDArray[np.int32]:
        return np.full(self._centroids, -1, np.int32)

    def _joined(self, parts: list[Lists]) -> Lists:
        counts = np.stack([np.diff(part.starts) for part in parts])  # [parts, centroids]
        starts = np.concatenate([[0], np.cumsum(counts.sum(axis=0))]).astype(np.int64)
        within = np.cumsum(counts, axis=0) - counts
        rows = np.empty(int(starts[-1]), np.int32)
        first = 0
        for part, before, sizes in zip(parts, within, counts, strict=True):
            shifts = np.repeat(starts[:-1] + before - part.starts[:-1], sizes)
            rows[shifts + np.arange(len(part.rows))] = part.rows + first
            first += part.documents
        return Lists(starts, rows, first)
