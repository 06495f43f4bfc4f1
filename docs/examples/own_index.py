"""An index of your own: a numpy matrix, every query against every row.

In YAML: ``index: {type: own_index:MatrixIndex}`` (the folder is on PYTHONPATH).
"""

from pathlib import Path

import numpy as np

from sluice.indexing import Hits, Index
from sluice.indexing.checks import checked_dense
from sluice.indexing.hits import best_first
from sluice.retrieval.testing import check_index


class MatrixIndex(Index):
    """Inner products of dense vectors. ``Index`` keeps rows, deletions and checks by itself."""

    metric = "ip"

    def __init__(self):
        super().__init__()
        self.matrix = None  # [rows, width], deleted rows included

    @property
    def size_bytes(self):
        """Bytes of the arrays that are saved."""
        return 0 if self.matrix is None else self.matrix.nbytes

    def _checked(self, vectors, what):
        return checked_dense(vectors, None if self.matrix is None else self.matrix.shape[1], what)

    def _append(self, documents):
        parts = [documents] if self.matrix is None else [self.matrix, documents]
        self.matrix = np.concatenate(parts)

    def _search(self, queries, k, allowed, parameters):
        hits = Hits.missing(len(queries), k)  # row -1, score -inf
        rows = np.arange(len(self.matrix)) if allowed is None else np.flatnonzero(allowed)
        for place, query in enumerate(queries):
            scores = (self.matrix[rows] @ query).astype(np.float32)
            hits.rows[place], hits.scores[place] = best_first(rows, scores, k)  # ties by row
        return hits

    def _keep_only(self, allowed):
        self.matrix = self.matrix[allowed]

    def _write(self, folder):
        np.save(folder / "matrix.npy", np.zeros((0, 0)) if self.matrix is None else self.matrix)
        return {}  # JSON that _read is handed

    @classmethod
    def _read(cls, folder: Path, facts):
        index = cls()
        matrix = np.load(folder / "matrix.npy")
        index.matrix = matrix if matrix.size else None
        return index


# Brute force with ties, deletions, filters, saving and opening: raises BrokenRule, or all is well.
check_index(MatrixIndex)
