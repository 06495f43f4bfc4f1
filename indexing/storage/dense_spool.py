"""Dense vectors on their way to disk: appended to a file and read from there, not from memory."""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.indexing.checks import Dense


class DenseSpool:
    """A file that vectors are appended to, and from which those are mapped.

    For an index that is filled and saved without ever lying in memory as a whole. The file lies in
    ``folder``, has no name, and goes with the object and what was mapped from it.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._stream = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        weakref.finalize(self, self._stream.close)
        self._size = 0

    def append(self, vectors: Dense) -> Dense:
        """Write float32 vectors ``[n, width]``, at least one, and return them from the file."""
        self._stream.seek(self._size)  # over what an append that failed may have left
        self._stream.write(np.ascontiguousarray(vectors, np.float32).data)
        self._stream.flush()
        start, self._size = self._size, self._size + 4 * vectors.size
        return np.memmap(self._stream, np.float32, mode="r", offset=start, shape=vectors.shape)


def passing(chunks: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yield chunks, and give back the memory of each that is mapped once the next is asked for."""
    for chunk in chunks:
        yield chunk
        mapped = getattr(chunk, "_mmap", None)
        if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)  # of a file: it is read again where it is needed
