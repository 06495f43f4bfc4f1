"""Transposes postings, from documents by term to terms by document and back, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.arrays import map_array

if TYPE_CHECKING:
    from scipy.sparse import csr_array

RUN = 1 << 21  # entries sorted at a time: 25 MB, and several times that while they are sorted
PIECES = 4096  # small arrays held before they are joined
Entries = tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.float32]]


class Transposition:
    """Takes (major, minor, value) entries in any order of majors and gives them by major.

    The minors of one major must come in ascending order. Entries beyond ``RUN`` are sorted into
    files of ``folder``, 12 bytes an entry; then the sorted runs are merged a range at a time.
    """

    def __init__(self, folder: Path) -> None:
        self.counts: NDArray[np.int64] = np.zeros(0, np.int64)  # of entries by major, once sorted
        self._folder = folder
        self._pieces: list[Entries] = []
        self._held = 0
        self._runs: list[Entries] = []

    def add(self, majors: NDArray[Any], minors: NDArray[Any], values: NDArray[Any]) -> None:
        """Take entries of any number; the arrays are copied."""
        self._pieces.append(
            (majors.astype(np.uint32), minors.astype(np.uint32), values.astype(np.float32))
        )
        self._held += len(majors)
        if self._held >= RUN:
            self._store(*self._sorted())
        elif len(self._pieces) >= PIECES:
            self._pieces = [_joined(self._pieces)]

    def finish(self, majors: int) -> None:
        """Sort what was added last; ``counts`` then has ``majors`` places."""
        if self._held:
            self._runs.append(self._sorted())
        self.counts = np.concatenate([self.counts, np.zeros(majors - len(self.counts), np.int64)])

    def ranges(self, minors: int) -> Iterator[tuple[int, csr_array[Any]]]:
        """Yield (first major, matrix ``[range, minors]``) for consecutive ranges of all majors."""
        import scipy.sparse as sp

        ends = np.cumsum(self.counts)
        first, passed = 0, 0
        while first < len(ends):
            last = max(first + 1, int(np.searchsorted(ends, passed + RUN, side="right")))
            parts = []
            for run in self._runs:
                begin, end = np.searchsorted(run[0], np.array([first, last], np.uint32))
                parts.append((run[0][begin:end], run[1][begin:end], run[2][begin:end]))
            rows, columns, values = _joined(parts)
            shape = (last - first, minors)
            matrix = sp.coo_array((values, (rows.astype(np.int64) - first, columns)), shape=shape)
            yield first, sp.csr_array(matrix)
            first, passed = last, int(ends[last - 1])

    def _sorted(self) -> Entries:
        majors, minors, values = _joined(self._pieces)
        self._pieces, self._held = [], 0
        counts = np.bincount(majors)
        counts[: len(self.counts)] += self.counts[: len(counts)]
        self.counts = np.concatenate([counts, self.counts[len(counts) :]])
        order = np.argsort(majors, kind="stable")
        return majors[order], minors[order], values[order]

    def _store(self, *arrays: NDArray[Any]) -> None:
        mapped = []
        for place, array in enumerate(arrays):
            path = self._folder / f"{len(self._runs)}-{place}.npy"
            np.save(path, array)
            mapped.append(map_array(path))
        self._runs.append((mapped[0], mapped[1], mapped[2]))


def _joined(parts: list[Entries]) -> Entries:
    none = (np.zeros(0, np.uint32), np.zeros(0, np.uint32), np.zeros(0, np.float32))
    majors, minors, values = zip(none, *parts, strict=True)
    return np.concatenate(majors), np.concatenate(minors), np.concatenate(values)
