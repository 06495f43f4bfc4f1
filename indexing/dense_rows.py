"""Full float32 vectors by row: in memory or mapped, grown in chunks, scored exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from indexing.arrays import fact, open_array, write_array
from indexing.exact import Metric, Norms, exact_scores, norms_of
from indexing.hits import Hits, best_first
from indexing.live import Mask
from indexing.vectors import Dense

JOINED = 65_536  # rows up to which small additions are joined


class Block(NamedTuple):
    """Consecutive or picked documents with their row numbers."""

    rows: NDArray[np.int64]
    vectors: Dense
    norms: Norms


class DenseRows:
    """The vectors of rows 0, 1, 2, ... with their norms; rows are only added, or compacted."""

    def __init__(self) -> None:
        self._chunks: list[tuple[Dense, Norms]] = []

    def __len__(self) -> int:
        return sum(len(norms) for _, norms in self._chunks)

    @property
    def width(self) -> int | None:
        """Dimensions of the vectors; None before the first ``append``."""
        return int(self._chunks[0][0].shape[1]) if self._chunks else None

    @property
    def nbytes(self) -> int:
        """Bytes of the vectors and their norms."""
        return sum(vectors.nbytes + norms.nbytes for vectors, norms in self._chunks)

    def append(self, vectors: Dense) -> None:
        """Add a copy of checked vectors ``[n, width]`` as the next rows."""
        joined, total = [(np.array(vectors), norms_of(vectors))], len(vectors)
        # Joined like the digits of a binary counter: each row is copied O(log) times.
        while self._chunks and len(last := self._chunks[-1][0]) <= min(total, JOINED - total):
            total += len(last)
            joined.insert(0, self._chunks.pop())
        if len(joined) > 1:
            parts, norms = zip(*joined, strict=True)
            joined = [(np.concatenate(parts), np.concatenate(norms))]
        self._chunks.extend(joined)

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
        kept, first = [], 0
        for vectors, norms in self._chunks:
            mask = allowed[first : first + len(vectors)]
            kept.append((vectors[mask], norms[mask]))
            first += len(vectors)
        # An empty chunk stays if nothing else does: it remembers the width.
        self._chunks = [chunk for chunk in kept if len(chunk[0])] or kept[:1]

    def write(self, folder: Path) -> dict[str, Any]:
        """Write ``vectors.npy`` and ``norms.npy``; return the facts ``read`` needs."""
        shape = (len(self), self.width or 0)
        write_array(folder / "vectors.npy", (v for v, _ in self._chunks), shape, np.float32)
        write_array(folder / "norms.npy", (n for _, n in self._chunks), shape[:1], np.float64)
        return {"rows": shape[0], "dim": shape[1]}

    @classmethod
    def read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        """Open what ``write`` wrote, mapped into memory."""
        opened = cls()
        shape = (fact(facts, "rows", int, folder), fact(facts, "dim", int, folder))
        vectors = open_array(folder / "vectors.npy", np.float32, shape)
        norms = open_array(folder / "norms.npy", np.float64, shape[:1])
        if shape[1]:
            opened._chunks = [(vectors, norms)]
        return opened
