"""Exact dense search: the oracle that every other dense index is compared with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from encoders.errors import ConfigError, IndexFormatError
from indexing.arrays import fact, open_array, write_array
from indexing.candidates import Candidates
from indexing.exact import Metric, Norms, checked_metric, error_bound, norms_of
from indexing.hits import Hits
from indexing.index import Index
from indexing.live import Mask
from indexing.vectors import Dense, checked_dense

DOCUMENT_BLOCK = 32_768  # documents in one matrix product
QUERY_BLOCK = 128  # queries in one: 16 MiB of scores
SMALLEST_NORM = 1e-30  # documents shorter than this get no bound: their inverse may overflow
CHUNK = 65_536  # rows up to which small additions are joined


class Block(NamedTuple):
    """Consecutive or picked documents with their row numbers."""

    rows: NDArray[np.int64]
    vectors: Dense
    norms: Norms


class FlatIndex(Index):
    """Every query against every document, exactly; ``metric`` is ``ip``, ``cosine`` or ``l2``.

    The result equals brute force row by row, rows included: a score is the float64 sum over one
    query and one document (for ``l2`` the negative squared distance) rounded to float32, the same
    for equal vectors whatever the batch and the blocks, and ties go to the lower row, also at the
    boundary of ``k``. A float32 matrix product finds the candidates with a margin for its rounding;
    the candidates are scored exactly. ``cosine`` normalises by itself; a zero vector has cosine 0.
    Memory of a search: a block of documents by a block of queries, and some thousand candidates a
    query.
    """

    type_name = "flat"

    def __init__(self, metric: Metric = "ip") -> None:
        super().__init__()
        self.metric: Metric = checked_metric(metric)
        self._chunks: list[tuple[Dense, Norms]] = []

    @property
    def width(self) -> int | None:
        """Dimensions of the vectors; None before the first ``add``."""
        return int(self._chunks[0][0].shape[1]) if self._chunks else None

    @property
    def size_bytes(self) -> int:
        """Bytes of the vectors and their norms."""
        return sum(vectors.nbytes + norms.nbytes for vectors, norms in self._chunks)

    def _checked(self, vectors: Any, what: str) -> Dense:
        return checked_dense(vectors, self.width, what)

    def _append(self, documents: Dense) -> None:
        joined, total = [(np.array(documents), norms_of(documents))], len(documents)
        # Joined like the digits of a binary counter: each row is copied O(log) times.
        while self._chunks and len(last := self._chunks[-1][0]) <= min(total, CHUNK - total):
            total += len(last)
            joined.insert(0, self._chunks.pop())
        if len(joined) > 1:
            vectors, norms = zip(*joined, strict=True)
            joined = [(np.concatenate(vectors), np.concatenate(norms))]
        self._chunks.extend(joined)

    def _search(
        self, queries: Dense, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        norms = norms_of(queries)
        if self.metric == "cosine":
            lengths = np.where(norms > 0, norms, 1.0)[:, None]
            factors = (queries / lengths).astype(np.float32)
        else:
            factors = queries
        best = [
            Candidates(query, self.metric, float(norm), k)
            for query, norm in zip(queries, norms, strict=True)
        ]
        for block in self._blocks(allowed):
            for start in range(0, len(queries), QUERY_BLOCK):
                part = slice(start, start + QUERY_BLOCK)
                self._offer(factors[part], norms[part], block, best[part])
        hits = Hits.missing(len(queries), k)
        for place, candidates in enumerate(best):
            rows, scores = candidates.best()
            hits.rows[place, : len(rows)] = rows
            hits.scores[place, : len(rows)] = scores
        return hits

    def _offer(self, queries: Dense, norms: Norms, block: Block, best: list[Candidates]) -> None:
        """Offer a block of documents, with their approximate scores, to each query's candidates."""
        lengths = np.where(block.norms > 0, block.norms, 1.0)
        with np.errstate(over="ignore", invalid="ignore"):  # NaN stays a candidate, see there
            scores = queries @ block.vectors.T  # [queries, documents]
            if self.metric == "cosine":
                scores *= (1.0 / lengths).astype(np.float32)
            elif self.metric == "l2":
                scores *= 2
                scores -= (block.norms**2).astype(np.float32)
                scores -= (norms**2).astype(np.float32)[:, None]
        largest, width = float(block.norms.max()), queries.shape[1]
        scaled_up = self.metric == "cosine" and bool((lengths < SMALLEST_NORM).any())
        for candidates, norm, line in zip(best, norms, scores, strict=True):
            error = error_bound(self.metric, width, float(norm), largest)
            error = math.inf if scaled_up else error
            candidates.offer(line, error, block.rows, block.vectors, block.norms)

    def _blocks(self, allowed: Mask | None) -> Iterator[Block]:
        first = 0
        for vectors, norms in self._chunks:
            for start in range(0, len(vectors), DOCUMENT_BLOCK):
                part = slice(start, min(start + DOCUMENT_BLOCK, len(vectors)))
                rows = np.arange(first + part.start, first + part.stop, dtype=np.int64)
                if allowed is None or (mask := allowed[rows[0] : rows[-1] + 1]).all():
                    yield Block(rows, vectors[part], norms[part])
                elif mask.any():
                    yield Block(rows[mask], vectors[part][mask], norms[part][mask])
            first += len(vectors)

    def _keep_only(self, allowed: Mask) -> None:
        kept, first = [], 0
        for vectors, norms in self._chunks:
            mask = allowed[first : first + len(vectors)]
            kept.append((vectors[mask], norms[mask]))
            first += len(vectors)
        # An empty chunk stays if nothing else does: it remembers the width.
        self._chunks = [chunk for chunk in kept if len(chunk[0])] or kept[:1]

    def _write(self, folder: Path) -> dict[str, Any]:
        shape = (self.rows, self.width or 0)
        write_array(folder / "vectors.npy", (v for v, _ in self._chunks), shape, np.float32)
        write_array(folder / "norms.npy", (n for _, n in self._chunks), shape[:1], np.float64)
        return {"metric": self.metric, "rows": shape[0], "dim": shape[1]}

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        try:
            index = cls(fact(facts, "metric", str, folder))
        except ConfigError as error:
            raise IndexFormatError(f"{folder}: {error}") from None
        shape = (fact(facts, "rows", int, folder), fact(facts, "dim", int, folder))
        vectors = open_array(folder / "vectors.npy", np.float32, shape)
        norms = open_array(folder / "norms.npy", np.float64, shape[:1])
        if shape[1]:
            index._chunks = [(vectors, norms)]
        return index
