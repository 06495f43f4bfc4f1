"""The documents of an index in blocks of one chunk each, without those that may not be hits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.indexing.live_rows import Mask
from sluice.indexing.storage.chunked_rows import Chunk

_ALL: NDArray[np.int64] = np.empty(0, dtype=np.int64)


class Picked(NamedTuple):
    """Documents of one chunk: places ``start`` to ``start + documents``, or just ``places``."""

    chunk: int
    first_row: int  # of the chunk
    start: int
    documents: int
    places: NDArray[np.int64]  # ascending; empty when all from start are meant


def picked(chunks: Sequence[Chunk], size: int, allowed: Mask | None) -> Iterator[Picked]:
    """Yield the allowed documents in row order, at most ``size`` at a time."""
    first_row = 0
    for chunk, (column, *_) in enumerate(chunks):
        total = len(column)
        if allowed is None or (mask := allowed[first_row : first_row + total]).all():
            for start in range(0, total, size):
                yield Picked(chunk, first_row, start, min(size, total - start), _ALL)
        else:
            places = np.flatnonzero(mask)
            for start in range(0, len(places), size):
                part = places[start : start + size]
                together = part[-1] - part[0] + 1 == len(part)
                yield Picked(chunk, first_row, int(part[0]), len(part), _ALL if together else part)
        first_row += total
