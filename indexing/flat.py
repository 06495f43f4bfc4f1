"""Exact dense search: the oracle that every other dense index is compared with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from encoders.errors import ConfigError, IndexFormatError
from indexing.arrays import fact
from indexing.candidates import Candidates
from indexing.dense_rows import Block, DenseRows
from indexing.exact import Metric, Norms, checked_metric, error_bound, norms_of
from indexing.hits import Hits
from indexing.index import Index
from indexing.live import Mask
from indexing.vectors import Dense, checked_dense

DOCUMENT_BLOCK = 32_768  # documents in one matrix product
QUERY_BLOCK = 128  # queries in one: 16 MiB of scores
SMALLEST_NORM = 1e-30  # documents shorter than this get no bound: their inverse may overflow


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
        self._vectors = DenseRows()

    @property
    def width(self) -> int | None:
        """Dimensions of the vectors; None before the first ``add``."""
        return self._vectors.width

    @property
    def size_bytes(self) -> int:
        """Bytes of the vectors and their norms."""
        return self._vectors.nbytes

    def _checked(self, vectors: Any, what: str) -> Dense:
        return checked_dense(vectors, self.width, what)

    def _append(self, documents: Dense) -> None:
        self._vectors.append(documents)

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
        for block in self._vectors.blocks(DOCUMENT_BLOCK, allowed):
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

    def _keep_only(self, allowed: Mask) -> None:
        self._vectors.keep_only(allowed)

    def _write(self, folder: Path) -> dict[str, Any]:
        return {"metric": self.metric, **self._vectors.write(folder)}

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        try:
            index = cls(fact(facts, "metric", str, folder))
        except ConfigError as error:
            raise IndexFormatError(f"{folder}: {error}") from None
        index._vectors = DenseRows.read(folder, facts)
        return index
