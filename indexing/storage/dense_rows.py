"""Full float32 vectors by row: in memory or mapped, grown in chunks, scored exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sluice.indexing.checks import Dense
from sluice.indexing.hits import Hits, best_first
from sluice.indexing.live_rows import Mask
from sluice.indexing.storage.arrays import fact, open_array
from sluice.indexing.storage.chunked_rows import ChunkedRows
from sluice.indexing.storage.dense_spool import DenseSpool
from sluice.indexing.storage.exact_scores import Metric, Norms, exact_scores, norms_of


class Block(NamedTuple):
    """Consecutive or picked documents with their row numbers."""

    rows: NDArray[np.int64]
    vectors: Dense
    norms: Norms


class DenseRows(ChunkedRows):
    """The vectors of rows 0, 1, 2, ... with their norms; rows are only added, or compacted."""

    def __init__(self) -> None:
        super().__init__()
        self._spool: DenseSpool | None = None
        self._range: tuple[float, float] | None = None  # of the norms

    @property
    def width(self) -> int | None:
        """Dimensions of the vectors; None before the first ``append``."""
        return int(self._chunks[0][0].shape[1]) if self._chunks else None

    def append(self, vectors: Dense) -> Norms:
        """Add a copy of checked vectors ``[n, width]`` as the next rows; return their norms."""
        norms, self._range = norms_of(vectors), None
        if self._spool is None:
            self._extend((np.array(vectors), norms))
        else:
            self._extend((self._spool.append(vectors), norms), join=False)
        return norms

    def norm_range(self) -> tuple[float, float]:
        """Return the least norm above 0 and the largest; ``(1, 0)`` where all are 0."""
        if self._range is None:
            norms = [norms[norms > 0] for _, norms in self._chunks]
            least = min((float(each.min()) for each in norms if len(each)), default=1.0)
            largest = max((float(each.max()) for each in norms if len(each)), default=0.0)
            self._range = least, largest
        return self._range

    @property
    def spooled(self) -> bool:
        """Whether vectors go to a file, each addition as a chunk of its own."""
        return self._spool is not None

    def spool(self, folder: Path) -> None:
        """Keep the vectors added from now on in a file of ``folder``, and map them from there."""
        self._spool = DenseSpool(folder)

    def blocks(self, size: int, allowed: Mask | None = None) -> Iterator[Block]:
        """Yield the allowed rows in ascending blocks of at most ``size``; whole ones are views."""
        first = 0
        for vectors, norms in self._chunks:
            for start in range(0, len(vectors), size):
                part = slice(start, min(start + size, len(vectors)))
                rows = np.arange(first + part.start, first + part.stop, dtype=np.int64)
                if allowed is None or (mask := allowed[rows[0] : rows[-1] + 1]).all():
                    yield Block(rows, vectors[part], norms[part])
                elif mask.any():
                    yield Block(rows[mask], vectors[part][mask], norms[part][mask])
            first += len(vectors)

    def gather(self, rows: NDArray[np.int64]) -> tuple[Dense, Norms]:
        """Return vectors ``[n, width]`` and norms of any rows, in their order."""
        if len(self._chunks) == 1:
            vectors, norms = self._chunks[0]
            return vectors[rows], norms[rows]
        ends = np.cumsum([len(norms) for _, norms in self._chunks])
        homes = np.searchsorted(ends, rows, side="right")
        vectors = np.empty((len(rows), self.width or 0), np.float32)
        norms = np.empty(len(rows))
        for home in np.unique(homes):
            here = homes == home
            local = rows[here] - (ends[home] - len(self._chunks[home][1]))
            vectors[here], norms[here] = (part[local] for part in self._chunks[home])
        return vectors, norms

    def rescored(
        self, queries: Dense, candidates: NDArray[np.int64], k: int, metric: Metric
    ) -> Hits:
        """Return the ``k`` best of each query's candidate rows ``[n, c]`` by exact score.

        Ties go to the lower row; -1 is no candidate, and none may stand twice in a line.
        """
        hits = Hits.missing(len(queries), k)
        lengths = norms_of(queries)
        for place, (query, line) in enumerate(zip(queries, candidates, strict=True)):
            rows = line[line >= 0]
            if len(rows):
                vectors, norms = self.gather(rows)
                scores = exact_scores(query, vectors, metric, float(lengths[place]), norms)
                best, scores = best_first(rows, scores, k)
                hits.rows[place, : len(best)], hits.scores[place, : len(best)] = best, scores
        return hits

    def keep_only(self, allowed: Mask) -> None:
        """Drop the rows that ``allowed`` excludes; the others move up in order."""
        super().keep_only(allowed)
        self._range = None

    def write(self, folder: Path) -> dict[str, Any]:
        """Write ``vectors.npy`` and ``norms.npy``; return the facts ``read`` needs."""
        width = self.width or 0
        self._write_columns(folder, _columns(width))
        return {"rows": len(self), "dim": width}

    @classmethod
    def read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        """Open what ``write`` wrote, mapped into memory."""
        opened = cls()
        rows, width = fact(facts, "rows", int, folder), fact(facts, "dim", int, folder)
        if width:
            opened._read_columns(folder, _columns(width), rows)
        else:
            open_array(folder / "vectors.npy", np.float32, (rows, 0))
        return opened


def _columns(width: int) -> list[tuple[str, DTypeLike, int]]:
    return [("vectors", np.float32, width), ("norms", np.float64, 0)]
