"""Holds documents until a segment is built: few in memory, many in temporary files."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.disk.files import name_file
from sluice.encoders.foundation.errors import DataError

SPILL = 1 << 25  # postings that are kept in memory: 256 MB
STEP = 1 << 14  # documents moved at a time

Documents = tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.float32]]


class Spool:
    """Sparse documents in the order of adding, read back in ranges.

    ``terms`` is the width of the widest matrix. The temporary files have no name and go with the
    object; they lie in ``TMPDIR``.
    """

    def __init__(self, spill: int = SPILL) -> None:
        self.terms = 0
        self._spill = spill
        self._starts = [np.zeros(1, dtype=np.int64)]
        self._kept: list[tuple[NDArray[np.uint32], NDArray[np.float32]]] = []
        self._files: tuple[IO[bytes], IO[bytes]] | None = None
        self._postings = self._written = self._documents = 0  # written: to the files

    def __len__(self) -> int:
        return self._documents

    @property
    def postings(self) -> int:
        """Number of postings."""
        return self._postings

    def append(self, matrix: sparse.csr_array[Any]) -> None:
        """Copy the rows of a checked matrix; if that fails (a full disk) nothing is added."""
        indptr = matrix.indptr.astype(np.int64)
        first, last = int(indptr[0]), int(indptr[-1])
        before = len(self)
        self._starts.append(indptr[1:] - first + self._postings)
        self._kept.append(
            (matrix.indices[first:last].astype(np.uint32), matrix.data[first:last].copy())
        )
        self._postings += last - first
        self._documents += int(matrix.shape[0])
        try:
            if self._postings - self._written > self._spill:
                self._write()
        except BaseException as error:
            if isinstance(error, OSError):
                name_file(error, Path(tempfile.gettempdir()))
            self.rewind(before)
            raise
        self.terms = max(self.terms, int(matrix.shape[1]))

    def _write(self) -> None:
        if self._files is None:
            self._files = (tempfile.TemporaryFile(), tempfile.TemporaryFile())  # noqa: SIM115
            for each in self._files:
                weakref.finalize(self, each.close)
        for chunk in self._kept:
            for stream, array in zip(self._files, chunk, strict=True):
                array.tofile(stream)
        for stream in self._files:
            stream.flush()
        self._kept, self._written = [], self._postings

    def rewind(self, documents: int) -> None:
        """Forget all but the first ``documents``."""
        starts = self.starts()[: documents + 1].copy()
        self._starts, self._documents, self._postings = [starts], documents, int(starts[-1])
        self._written = min(self._written, self._postings)
        for stream in self._files or ():
            stream.seek(4 * self._written)
            stream.truncate()
        if self._kept:
            size = self._postings - self._written
            self._join()
            terms, impacts = self._kept[0]
            self._kept = [(terms[:size], impacts[:size])]

    def _join(self) -> None:
        if len(self._kept) > 1:
            terms, impacts = zip(*self._kept, strict=True)
            self._kept = [(np.concatenate(terms), np.concatenate(impacts))]

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
        self._join()
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
        spool, starts = Spool(self._spill), self.starts()
        terms, impacts = self._arrays()
        for first in range(0, len(order), STEP):
            rows = order[first : first + STEP].astype(np.int64)
            lengths = starts[rows + 1] - starts[rows]
            ends = np.concatenate([[0], np.cumsum(lengths)])
            places = np.repeat(starts[rows] - ends[:-1], lengths) + np.arange(ends[-1])
            part = (impacts[places], terms[places].astype(np.int64), ends)
            spool.append(sparse.csr_array(part, shape=(len(rows), self.terms)))
        spool.terms = self.terms
        return spool

    def _arrays(self) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
        """Return all terms and impacts, mapped where they are files."""
        if self._files is None or not self._postings:
            return self.documents(0, len(self))[1:]
        if self._kept:
            self._write()
        kinds: tuple[type[np.generic], ...] = (np.uint32, np.float32)
        terms, impacts = (
            np.memmap(stream, kind, mode="r", shape=(self._postings,))
            for stream, kind in zip(self._files, kinds, strict=True)
        )
        return terms, impacts


def _read(stream: IO[bytes], first: int, last: int, dtype: type[np.generic]) -> NDArray[Any]:
    """Read by position, so that several threads may."""
    size = np.dtype(dtype).itemsize
    array = np.empty(last - first, dtype=dtype)
    view, done = array.view(np.uint8), 0
    while done < len(view):
        read = os.preadv(stream.fileno(), [view[done:].data], first * size + done)
        if not read:
            raise DataError("the temporary files of the index were truncated; is the disk full?")
        done += read
    return array
