"""Documents on their way into a segment: in memory while they are few, then in temporary files."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

SPILL = 1 << 25  # postings that are kept in memory: 256 MB
STEP = 1 << 14  # documents moved at a time

Documents = tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.float32]]


class Spool:
    """Sparse documents in the order of adding, read again in ranges.

    ``terms`` is the width of the widest matrix. The temporary files have no name and go with the
    object; they lie where ``TMPDIR`` says.
    """

    def __init__(self, spill: int = SPILL) -> None:
        self.terms = 0
        self._spill = spill
        self._starts = [np.zeros(1, dtype=np.int64)]
        self._kept: list[tuple[NDArray[np.uint32], NDArray[np.float32]]] = []
        self._files: tuple[IO[bytes], IO[bytes]] | None = None
        self._postings = self._in_memory = self._documents = 0

    def __len__(self) -> int:
        return self._documents

    @property
    def postings(self) -> int:
        """Number of postings."""
        return self._postings

    def append(self, matrix: sparse.csr_array[Any]) -> None:
        """Copy the rows of a checked matrix."""
        indptr = matrix.indptr.astype(np.int64)
        first, last = int(indptr[0]), int(indptr[-1])
        self._starts.append(indptr[1:] - first + self._postings)
        chunk = matrix.indices[first:last].astype(np.uint32), matrix.data[first:last].copy()
        self.terms = max(self.terms, int(matrix.shape[1]))
        self._postings += last - first
        self._documents += int(matrix.shape[0])
        self._kept.append(chunk)
        self._in_memory += last - first
        if self._in_memory > self._spill:
            self._write()

    def _write(self) -> None:
        if self._files is None:
            self._files = (tempfile.TemporaryFile(), tempfile.TemporaryFile())  # noqa: SIM115
            for each in self._files:
                weakref.finalize(self, each.close)
        for chunk in self._kept:
            for stream, array in zip(self._files, chunk, strict=True):
                array.tofile(stream)
        self._kept, self._in_memory = [], 0

    def starts(self) -> NDArray[np.int64]:
        """Return the first posting of each document and the end, int64 ``[n + 1]``."""
        if len(self._starts) > 1:
            self._starts = [np.concatenate(self._starts)]
        return self._starts[0]

    def documents(self, first: int, last: int) -> Documents:
        """Return documents ``[first, last)`` as (starts from 0, terms, impacts)."""
        starts = self.starts()[first : last + 1]
        begin, end = int(starts[0]), int(starts[-1])
        if self._files is not None:
            if self._kept:
                self._write()
            terms = _read(self._files[0], begin, end, np.uint32)
            return starts - begin, terms, _read(self._files[1], begin, end, np.float32)
        if len(self._kept) > 1:
            self._kept = [tuple(np.concatenate(part) for part in zip(*self._kept, strict=True))]  # type: ignore[list-item]
        if not self._kept:
            return starts - begin, np.empty(0, np.uint32), np.empty(0, np.float32)
        terms, impacts = self._kept[0]
        return starts - begin, terms[begin:end], impacts[begin:end]

    def matrices(self) -> Iterator[sparse.csr_array[Any]]:
        """Yield the documents as matrices of some thousand rows."""
        for first in range(0, len(self), STEP):
            last = min(first + STEP, len(self))
            starts, terms, impacts = self.documents(first, last)
            shape = (last - first, self.terms)
            yield sparse.csr_array((impacts, terms.astype(np.int64), starts), shape=shape)

    def reordered(self, order: NDArray[np.integer[Any]]) -> Spool:
        """Return a spool of the same documents in another order."""
        spool = Spool(self._spill)
        for first in range(0, len(order), STEP):
            parts = [self.documents(int(at), int(at) + 1) for at in order[first : first + STEP]]
            starts = np.cumsum([0, *(len(part[1]) for part in parts)])
            terms = np.concatenate([part[1] for part in parts])
            impacts = np.concatenate([part[2] for part in parts])
            shape = (len(parts), self.terms)
            spool.append(sparse.csr_array((impacts, terms.astype(np.int64), starts), shape=shape))
        spool.terms = self.terms
        return spool


def _read(stream: IO[bytes], first: int, last: int, dtype: type[np.generic]) -> NDArray[Any]:
    """Read by position, so that several threads may; a part that is in the buffer is flushed."""
    stream.flush()
    size = np.dtype(dtype).itemsize
    array = np.empty(last - first, dtype=dtype)
    view, done = array.view(np.uint8), 0
    while done < len(view):
        done += os.preadv(stream.fileno(), [view[done:].data], first * size + done)
    return array
