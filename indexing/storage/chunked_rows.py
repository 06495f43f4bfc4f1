"""Arrays that run in parallel by row: in memory or mapped, grown in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sluice.indexing.live_rows import Mask
from sluice.indexing.storage.arrays import open_array, write_array
from sluice.indexing.storage.dense_spool import passing

JOINED = 65_536  # rows up to which small additions are joined

Chunk = tuple[NDArray[Any], ...]  # the same rows of each array


class ChunkedRows:
    """Rows 0, 1, 2, ... of several arrays; they are only added, or compacted.

    The chunks are a function of how many rows came when, so objects that are filled alike can be
    read chunk by chunk together.
    """

    def __init__(self) -> None:
        self._chunks: list[Any] = []

    def __len__(self) -> int:
        return sum(len(chunk[0]) for chunk in self._chunks)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for chunk in self._chunks for array in chunk)

    def chunks(self) -> Sequence[Any]:
        """Return the chunks, in the order of their rows."""
        return tuple(self._chunks)

    def _extend(self, added: Chunk, join: bool = True) -> None:
        """Add rows that nobody else holds; ``join`` may copy the ones before: fewer chunks."""
        joined, total = [added], len(added[0])
        # Joined like the digits of a binary counter: each row is copied O(log) times.
        while join and self._chunks:
            last = len(self._chunks[-1][0])
            if last > min(total, JOINED - total):
                break
            total += last
            joined.insert(0, self._chunks.pop())
        if len(joined) > 1:
            joined = [tuple(np.concatenate(parts) for parts in zip(*joined, strict=True))]
        self._chunks.extend(joined)

    def keep_only(self, allowed: Mask) -> None:
        """Drop the rows that ``allowed`` excludes; the others move up in order."""
        kept, first = [], 0
        for chunk in self._chunks:
            mask = allowed[first : first + len(chunk[0])]
            kept.append(tuple(array[mask] for array in chunk))
            first += len(mask)
        # An empty chunk stays if nothing else does: it remembers the width.
        self._chunks = [chunk for chunk in kept if len(chunk[0])] or kept[:1]

    def _write_columns(self, folder: Path, columns: Sequence[tuple[str, DTypeLike, int]]) -> None:
        """Write one file for each array; a column is a name, a dtype and a width (0: no axis)."""
        for place, (name, dtype, width) in enumerate(columns):
            # The first array is the matrix, also while no vector has given it a width.
            shape = (len(self), width) if width or not place else (len(self),)
            parts = passing(chunk[place] for chunk in self._chunks)
            write_array(folder / f"{name}.npy", parts, shape, dtype)

    def _read_columns(
        self, folder: Path, columns: Sequence[tuple[str, DTypeLike, int]], rows: int
    ) -> None:
        """Map what was written, as one chunk."""
        self._chunks = [
            tuple(
                open_array(folder / f"{name}.npy", dtype, (rows, width) if width else (rows,))
                for name, dtype, width in columns
            )
        ]
