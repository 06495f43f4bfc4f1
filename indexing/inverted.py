"""Exact search over sparse impacts: BM25, SPLADE and their kin."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Self

import numpy as np
from numba import config
from numpy.typing import NDArray
from scipy import sparse

from encoders.errors import DataError, IndexFormatError
from indexing.accumulate import search_range
from indexing.arrays import fact, open_array, write_array
from indexing.hits import Hits
from indexing.index import Index
from indexing.live import Mask
from indexing.postings import Postings
from indexing.vectors import checked_sparse
from indexing.whole import whole_number

Sparse = sparse.csr_array[Any]
MAX_ROWS = 2**31  # row numbers share an int64 with the score's bits
TASKS_PER_THREAD = 4  # pieces of a batch: few enough to be cheap, enough to even out the threads


class Contribution(NamedTuple):
    """What one term adds to a score: ``contribution`` is ``query_weight`` times ``impact``."""

    term: int
    query_weight: float
    impact: float
    contribution: float


@dataclass(frozen=True, slots=True)
class InvertedStatistics:
    """Counts of an inverted index, deleted documents included until ``compact``."""

    documents: int
    terms: int  # width of the vocabulary
    used_terms: int  # terms that some document carries
    postings: int
    mean_terms: float  # per document
    longest: int  # postings of the most frequent term


class InvertedIndex(Index):
    """Documents by the terms they carry, with float32 impacts; vectors are scipy CSR arrays.

    A score is the float32 sum over the shared terms in ascending term order, each product rounded
    to float32 and a sum beyond it to the largest, and ties go to the lower row: equal to brute
    force, rows included. Documents that share no term with the query are no hits. Negative, NaN and
    infinite weights are refused, explicit zeros dropped.

    ``n_terms`` fixes the vocabulary's width; without it the width is that of the widest matrix
    added, because a vocabulary may grow. Query terms beyond it have no postings. Added documents
    are sorted into the postings before the next search, ``save`` or ``compact``. Batches run on
    ``NUMBA_NUM_THREADS`` threads (default: all cores); the results do not depend on their number.
    """

    type_name = "inverted"

    def __init__(self, n_terms: int | None = None) -> None:
        super().__init__()
        self.n_terms = None if n_terms is None else whole_number(n_terms, "n_terms", 1)
        self._postings = Postings.empty(self.n_terms or 0)
        self._pending: list[Sparse] = []  # added, not yet sorted into the postings
        self._building = Lock()

    @property
    def width(self) -> int:
        """Terms of the vocabulary so far."""
        return max([self._postings.terms, *(int(chunk.shape[1]) for chunk in self._pending)])

    @property
    def size_bytes(self) -> int:
        """Bytes of the postings."""
        return self._built().size_bytes

    def stats(self) -> InvertedStatistics:
        """Return how many documents, terms and postings there are."""
        postings = self._built()
        lengths = np.diff(postings.starts)
        return InvertedStatistics(
            documents=self.rows,
            terms=postings.terms,
            used_terms=int(np.count_nonzero(lengths)),
            postings=len(postings.rows),
            mean_terms=len(postings.rows) / self.rows if self.rows else 0.0,
            longest=int(lengths.max(initial=0)),
        )

    def explain(self, query: Sparse, row: int) -> list[Contribution]:
        """Return each shared term's part of the score of ``row``, in ascending term order.

        ``query`` is one sparse row ``[1, terms]``; the float32 sum of the parts is the score.
        """
        matrix = self._checked(query, "query")
        if matrix.shape[0] != 1:
            raise DataError(f"explain: {matrix.shape[0]} queries, expected one row")
        if not 0 <= row < self.rows:
            raise DataError(f"explain: no row {row}; this index has {self.rows:,} rows")
        starts, rows, impacts = self._built()
        parts = []
        for term, weight in zip(matrix.indices, matrix.data, strict=True):
            if term >= len(starts) - 1:
                break
            begin, end = starts[term], starts[term + 1]
            place = begin + np.searchsorted(rows[begin:end], row)
            if place < end and rows[place] == row:
                impact = impacts[place]
                parts.append(
                    Contribution(int(term), float(weight), float(impact), float(weight * impact))
                )
        return parts

    def _checked(self, vectors: Any, what: str) -> Sparse:
        matrix = checked_sparse(vectors, what)
        if self.n_terms is not None and what != "queries" and matrix.shape[1] > self.n_terms:
            raise DataError(
                f"{what}: {matrix.shape[1]} terms, this index was made for {self.n_terms}; "
                "encode with the encoder the index was built with"
            )
        return matrix

    def _append(self, documents: Sparse) -> None:
        if self.rows + documents.shape[0] > MAX_ROWS:
            raise DataError(f"documents: an index holds at most {MAX_ROWS:,}; use several")
        self._pending.append(documents.copy())

    def _built(self) -> Postings:
        """Return the postings of all documents, after sorting in those added last."""
        with self._building:  # two searches may come first at once
            if self._pending:
                first = self.rows - sum(int(chunk.shape[0]) for chunk in self._pending)
                self._postings = self._postings.extended(self._pending, first, self.width)
                self._pending = []
            return self._postings

    def _search(
        self, queries: Sparse, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        postings = self._built()
        known = queries[:, : postings.terms] if queries.shape[1] > postings.terms else queries
        count = int(known.shape[0])
        hits = Hits.missing(count, k)
        search = partial(
            search_range,
            *postings,
            self.rows,
            _mask(allowed),
            known.indptr.astype(np.int64),
            known.indices.astype(np.int64),
            known.data.copy(),  # writable: a read-only array would compile the kernel anew
        )
        threads = int(config.NUMBA_NUM_THREADS)
        step = -(-count // (threads * TASKS_PER_THREAD)) if threads > 1 else count
        if step == count:
            search(0, count, *hits)
        else:
            with ThreadPoolExecutor(threads) as pool:
                tasks = [
                    pool.submit(search, first, min(first + step, count), *hits)
                    for first in range(0, count, step)
                ]
                for task in tasks:
                    task.result()
        return hits

    def _keep_only(self, allowed: Mask) -> None:
        self._postings = self._built().filtered(allowed)

    def _write(self, folder: Path) -> dict[str, Any]:
        starts, rows, impacts = self._built()
        for name, array in (("starts", starts), ("rows", rows), ("impacts", impacts)):
            write_array(folder / f"{name}.npy", [array], array.shape, array.dtype)
        return {"n_terms": self.n_terms, "terms": len(starts) - 1, "postings": len(rows)}

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        terms, count = fact(facts, "terms", int, folder), fact(facts, "postings", int, folder)
        index = cls(None if facts.get("n_terms") is None else fact(facts, "n_terms", int, folder))
        starts = open_array(folder / "starts.npy", np.int64, (terms + 1,))
        # The kernel trusts these offsets, and a large file's checksum is not read at opening.
        if starts[0] != 0 or starts[-1] != count or (np.diff(starts) < 0).any():
            raise IndexFormatError(f"{folder / 'starts.npy'}: damaged offsets; rebuild the index")
        rows = open_array(folder / "rows.npy", np.uint32, (count,))
        impacts = open_array(folder / "impacts.npy", np.float32, (count,))
        index._postings = Postings(starts, rows, impacts)
        return index


def _mask(allowed: Mask | None) -> NDArray[np.bool_]:
    return np.zeros(0, dtype=np.bool_) if allowed is None else allowed
