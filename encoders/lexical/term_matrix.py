"""A vocabulary that grows with the terms asked of it, and counted texts as one sparse matrix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from sluice.encoders.lexical.term_counts import TermCounts
from sluice.encoders.lexical.variants import Weights


class Vocabulary(dict[str, int]):
    """Term to column; indexing it by a new term gives that term the next column."""

    def __missing__(self, term: str) -> int:
        self[term] = column = len(self)
        return column

    def shrink(self, size: int) -> None:
        """Forget all but the first ``size`` terms."""
        while len(self) > size:
            self.popitem()


def matrix_of(
    chunks: list[TermCounts], weigh: Callable[[TermCounts], Weights], width: int
) -> sp.csr_array:
    """Return the rows of all chunks as one matrix; empties ``chunks`` to free them as it goes."""
    sizes = np.concatenate([np.zeros(1, np.int64), *(counts.sizes for counts in chunks)])
    ends = np.cumsum(sizes)
    columns, values = np.empty(ends[-1], np.int32), np.empty(ends[-1], np.float32)
    start = 0
    chunks.reverse()
    while chunks:
        counts = chunks.pop()
        place = slice(start, start := start + len(counts.terms))
        columns[place], values[place] = counts.terms, weigh(counts)
    small = ends[-1] <= np.iinfo(np.int32).max
    rows = ends.astype(np.int32) if small else ends
    matrix = sp.csr_array((values, columns, rows), shape=(len(sizes) - 1, width))
    matrix.has_sorted_indices = True
    matrix.has_canonical_format = True
    return matrix
