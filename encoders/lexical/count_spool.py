"""Keeps counted documents until all are counted: few in memory, many in a temporary file."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from sluice.encoders.foundation.disk.files import name_file
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.lexical.term_counts import TermCounts

SPILL = 1 << 24  # pairs of a document and a term that are kept in memory: 134 MB


class CountSpool:
    """Chunks of counts in the order of adding, to be read once.

    The file has no name, lies in ``TMPDIR`` and takes 5 bytes for most pairs of a document and a
    term; it goes when the chunks have been read, or with the object.
    """

    def __init__(self, spill: int | None = None) -> None:
        self._spill = SPILL if spill is None else spill
        self._held: list[TermCounts] = []
        self._pairs = 0
        self._file: IO[bytes] | None = None
        self._forms: list[list[tuple[Any, tuple[int, ...]]]] = []  # of each chunk in the file
        self._open = ExitStack()
        weakref.finalize(self, self._open.close)

    def append(self, counts: TermCounts) -> None:
        """Keep a chunk; an ``OSError`` of a full disk names the folder of the file."""
        self._held.append(counts)
        self._pairs += len(counts.terms)
        if self._pairs > self._spill:
            try:
                if self._file is None:
                    self._file = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
                for each in self._held:
                    self._write(self._file, each)
            except OSError as error:
                name_file(error, Path(tempfile.gettempdir()))
                raise
            self._held = []

    def _write(self, file: IO[bytes], counts: TermCounts) -> None:
        small = counts.counts.astype(np.min_scalar_type(counts.counts.max(initial=0)))
        arrays = (counts.terms, small, counts.sizes, counts.lengths)
        for array in arrays:
            np.ascontiguousarray(array).tofile(file)
        self._forms.append([(array.dtype, array.shape) for array in arrays])

    def drained(self) -> Iterator[TermCounts]:
        """Yield the chunks, each of them once; ``DataError`` if the file was cut short."""
        with self._open:
            if self._file is not None:
                self._file.seek(0)
                for form in self._forms:
                    terms, counts, sizes, lengths = (
                        _read(self._file, *each).reshape(each[1]) for each in form
                    )
                    yield TermCounts(terms, counts.astype(np.int32), sizes, lengths)
            self._held.reverse()
            while self._held:
                yield self._held.pop()


def _read(file: IO[bytes], dtype: Any, shape: tuple[int, ...]) -> Any:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    data = bytearray(file.read(size))
    if len(data) < size:
        raise DataError("the temporary file of BM25's counts was truncated; is the disk full?")
    return np.frombuffer(data, dtype)
