"""Ranks documents of several passages by their best one (MaxP), over any other index."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.indexing.hits import Hits, Mask, Rows
from sluice.indexing.index import MOST_PLACES, Index, Parameters, SearchParameters
from sluice.indexing.storage.rows import fact, write_array
from sluice.indexing.table import INDEXES
from sluice.indexing.wrappers.funnel import WrappingIndex, open_inner, write_inner

INNER = "passages"  # folder of the inner index, below the folder of this one
FIRST_ROWS = "first_rows.npy"
WIDER = 4  # times as many passages are fetched when they are of too few documents


class PassageIndex(WrappingIndex):
    """An index whose rows are documents, over an ``inner`` one whose rows are their passages.

    The score of a document is that of its best passage (MaxP; Dai and Callan, 2019). Passages of a
    document are neighbours in ``inner``, in the order of adding, so where ``inner`` is exact the
    hits are exactly those of brute force, ties by document row included. An approximate ``inner``
    gives the best passages it finds: a line is short only where it runs out of them. A document
    without passages is never a hit.

    ``inner`` is an empty index of any kind, or the component ``{type: ...}`` that describes one.
    ``params`` of a search are the inner index's.
    """

    type_name = "passages"

    def __init__(
        self,
        inner: Annotated[
            Index | Mapping[str, Any], "The index that does the searching, {type: ...}."
        ],
    ) -> None:
        index = build(inner, INDEXES, where="inner") if isinstance(inner, Mapping) else inner
        if not isinstance(index, Index) or isinstance(index, PassageIndex):
            raise ConfigError(
                f"inner: {type(index).__name__}, expected an index of single vectors, such as "
                "FlatIndex() or {type: flat}"
            )
        if index.rows:
            raise ConfigError(
                f"inner: has {index.rows:,} rows already; give an empty index, or "
                "PassageIndex.wrap(inner, counts)"
            )
        self._wrap(index, [])

    def _wrap(self, inner: Index, counts: list[Rows]) -> None:
        super().__init__(inner, inner.metric)
        self._counts = counts  # passages by document, in the chunks of adding
        self._starts: Rows | None = None  # each document's first passage, made from the counts
        self._spread: tuple[Mask, Mask, int] | None = None  # live documents, their passages

    @classmethod
    def wrap(cls, inner: Index, counts: ArrayLike) -> Self:
        """Return an index over one that holds the passages already, ``counts`` of each document.

        ``DataError`` unless the counts add up to its rows and none of these is deleted. It is not
        copied: changes go through the index returned.
        """
        if len(inner) != inner.rows:
            raise DataError(
                f"inner: {inner.rows - len(inner):,} rows are deleted; compact it first"
            )
        numbers = _checked_counts(counts, inner.rows)
        index = cls.__new__(cls)
        index._wrap(inner, [numbers])
        index._live.extend(len(numbers))
        index.notes = dict(inner.notes)
        return index

    @property
    def by_passages(self) -> bool:
        """Whether a document has several vectors: yes."""
        return True

    @property
    def innermost(self) -> Index:
        """The index of the passages' vectors."""
        return self.inner.innermost

    @property
    def passages(self) -> int:
        """Number of passages of live documents."""
        live = self._live.allowed()
        counts = np.diff(self._first_rows())
        return int(counts.sum() if live is None else counts[live].sum())

    @property
    def size_bytes(self) -> int:
        """Bytes of the inner index and of the passages' numbers."""
        return self.inner.size_bytes + self._first_rows().nbytes

    @property
    def resident_bytes(self) -> int:
        """Bytes that searches keep returning to: the inner index's, and the passages' numbers."""
        return self.inner.resident_bytes + self._first_rows().nbytes

    def empty(self) -> Self:
        """Return an index without documents over an inner one with the settings of this one."""
        return type(self)(self.inner.empty())

    def check_fit(self, width: int, documents: int) -> None:
        """Raise if the inner index cannot hold vectors of this width; it gets more of them."""
        self.inner.check_fit(width, documents)

    def train(self, sample: Any) -> None:
        """Train the inner index on sample passages."""
        self.inner.train(sample)

    def add(self, vectors: Any, counts: ArrayLike | None = None) -> Rows:
        """Append documents and return their rows; ``vectors`` are their passages, one by one.

        ``counts`` ``[documents]`` says how many passages each document has, one unless given.
        ``DataError`` if they do not add up to the number of vectors; then nothing is added.
        """
        passages = self._checked(vectors, "documents")
        total = int(passages.shape[0])
        numbers = _checked_counts(counts, total)
        if total:
            self.inner.add(passages)
        if len(numbers):
            self._counts.append(numbers)
            self._starts = None
        return self._live.extend(len(numbers))

    def compact(self) -> Rows:
        """Drop deleted documents with their passages; return old row -> new row (-1: deleted)."""
        if self._live.allowed() is None:
            self.inner.compact()  # some indexes tidy up without deletions too
        return super().compact()

    def best_passages(self, vectors: Any, rows: ArrayLike) -> Hits:
        """Return the passage that gives each query's document its score, with that score.

        ``rows`` ``[n]`` are documents, one for each of the ``n`` queries. The hits ``[n, 1]`` are
        rows of ``inner``; less ``first_passages(rows)`` they are numbers within the document.
        Deleted documents, and those without a passage that is a hit, are row -1.
        """
        queries = self._checked(vectors, "queries")
        documents = self._live.known(np.asarray(rows), "rows")
        if len(documents) != queries.shape[0]:
            raise DataError(
                f"rows: {len(documents):,} for {queries.shape[0]:,} queries; give one for each"
            )
        hits = Hits.missing(len(documents), 1)
        live = self._live.allowed()
        for place, row in enumerate(documents):
            passages = self._passages_of(documents[place : place + 1])
            if len(passages) and (live is None or live[row]):
                best = self.inner.search(queries[place : place + 1], 1, keep=passages)
                hits.rows[place], hits.scores[place] = best.rows[0], best.scores[0]
        return hits

    def winning_passages(
        self, vector: Any, rows: ArrayLike, *, params: Parameters | None = None
    ) -> Rows:
        """Return which passage gives each of several documents its score for one query.

        ``vector`` is ``[1, width]``, ``rows`` ``[n]`` are documents. The numbers ``[n]`` count a
        document's passages from 0; -1 where none is a hit. ``params`` are those of the search that
        found the documents. One search of the inner index, among these passages alone.
        """
        queries = self._checked(vector, "queries")
        documents = self._live.known(np.asarray(rows), "rows")
        numbers = np.full(len(documents), -1, dtype=np.int64)
        passages = self._passages_of(np.unique(documents))
        if not len(passages):
            return numbers
        hits = self.inner.search(queries, len(passages), keep=passages, params=params).rows[0]
        found = hits[hits >= 0]  # best first, so a document's first one is its best
        owners, first = np.unique(self._owners_of(found), return_index=True)
        places = np.searchsorted(owners, documents)
        known = places < len(owners)
        known[known] = owners[places[known]] == documents[known]
        best = found[first[places[known]]]
        numbers[known] = best - self._first_rows()[documents[known]]
        return numbers

    def first_passages(self, rows: ArrayLike) -> Rows:
        """Return the rows of ``inner`` at which documents' passages begin."""
        first: Rows = self._first_rows()[self._live.known(np.asarray(rows), "rows")]
        return first

    def vectors_of(self, rows: Rows) -> tuple[Any, Rows]:
        """Return the vectors of documents' passages, one after the other, and each one's number."""
        starts = self._first_rows()
        return self.inner.documents(self._passages_of(rows)), starts[rows + 1] - starts[rows]

    def _first_rows(self) -> Rows:
        """Return each document's first passage, and the number of passages ``[rows + 1]``."""
        starts = self._starts
        if starts is None:
            counts = np.concatenate([np.zeros(0, dtype=np.int64), *self._counts])
            self._counts = [counts]
            starts = np.zeros(len(counts) + 1, dtype=np.int64)
            np.cumsum(counts, out=starts[1:])
            self._starts = starts
        return starts

    def _passages_of(self, rows: Rows) -> Rows:
        """Return the inner rows of documents' passages."""
        starts = self._first_rows()
        first, counts = starts[rows], starts[rows + 1] - starts[rows]
        before = np.cumsum(counts) - counts
        return np.repeat(first - before, counts) + np.arange(counts.sum(), dtype=np.int64)

    def _checked(self, vectors: Any, what: str) -> Any:
        return self.inner._checked(vectors, what)

    def _append(self, documents: Any) -> None:
        self.inner.add(documents)

    def _search(
        self, queries: Any, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        keep, total = self._allowed_passages(allowed)
        documents = self.rows if allowed is None else int(np.count_nonzero(allowed))
        depth = min(total, k * -(-total // max(documents, 1)))
        hits = Hits.missing(int(queries.shape[0]), k)
        lines, most = np.arange(len(hits.rows)), total
        while len(lines) and depth:
            unfinished = []
            step = max(1, MOST_PLACES // depth)  # queries whose passages fit into one result
            for start in range(0, len(lines), step):
                part = lines[start : start + step]
                batch = queries if len(part) == len(hits.rows) else queries[part]
                best = self.inner.search(batch, depth, keep=keep, params=parameters)
                hits.rows[part], hits.scores[part] = self._owners(best, k)
                # Hits come best first: each document has its final score and place.
                unfinished.append(part[(hits.rows[part, -1] < 0) & (best.rows[:, -1] >= 0)])
            lines = np.concatenate(unfinished)
            if len(lines):
                most = min(most, self._enough(allowed, k))
                lines = lines if depth < most else lines[:0]
                depth = min(most, depth * WIDER)
        return hits

    def _allowed_passages(self, allowed: Mask | None) -> tuple[Mask | None, int]:
        """Return the mask over ``inner`` and how many it allows.

        That of searches without ``keep`` is made once.
        """
        starts = self._first_rows()
        if allowed is None:
            return None, int(starts[-1])
        spread = self._spread
        if spread is None or spread[0] is not allowed:
            mask = np.repeat(allowed, np.diff(starts))
            spread = allowed, mask, int(np.count_nonzero(mask))
            if allowed is self._live.allowed():
                self._spread = spread
        return spread[1:]

    def _enough(self, allowed: Mask | None, k: int) -> int:
        """Return how many passages are of ``k`` documents for certain.

        The passages of any ``k - 1`` documents, and one more, are of at least ``k``.
        """
        counts = np.diff(self._first_rows())
        counts = counts if allowed is None else counts[allowed]
        others = k - 1
        if others == 0 or others >= len(counts):
            return int(counts.sum()) if others else 1
        return int(np.partition(counts, len(counts) - others)[-others:].sum()) + 1

    def _owners(self, passages: Hits, k: int) -> Hits:
        """Return the first ``k`` distinct documents of each line of passages."""
        owners = self._owners_of(passages.rows)
        owners = np.where(passages.rows >= 0, owners, -1)
        order = np.argsort(owners, axis=1, kind="stable")
        grouped = np.take_along_axis(owners, order, axis=1)
        leading = grouped >= 0
        leading[:, 1:] &= grouped[:, 1:] != grouped[:, :-1]
        first = np.zeros_like(leading)
        np.put_along_axis(first, order, leading, axis=1)
        places = np.cumsum(first, axis=1) - 1
        lines, columns = np.nonzero(first & (places < k))
        hits = Hits.missing(len(owners), k)
        hits.rows[lines, places[lines, columns]] = owners[lines, columns]
        hits.scores[lines, places[lines, columns]] = passages.scores[lines, columns]
        return hits

    def _owners_of(self, passages: Rows) -> Rows:
        """Return the document of each row of ``inner``."""
        owners: Rows = np.searchsorted(self._first_rows(), passages, side="right") - 1
        return owners

    def _keep_only(self, allowed: Mask) -> None:
        counts = np.diff(self._first_rows())
        self._drop_inner_rows(np.repeat(allowed, counts))
        self._counts, self._starts = [counts[allowed]], None

    @property
    def _parameters(self) -> SearchParameters:
        return self.inner._parameters

    def _write(self, folder: Path) -> dict[str, Any]:
        starts = self._first_rows()
        write_array(folder / FIRST_ROWS, [starts], starts.shape, np.int64)
        return {"inner": write_inner(self.inner, folder / INNER)}

    @classmethod
    def _open(cls, folder: Path, facts: Mapping[str, Any], allow: Collection[str]) -> Self:
        inner = open_inner(folder / INNER, fact(facts, "inner", dict, folder), allow)
        starts = open_array(folder / FIRST_ROWS, np.int64, (None,), mapped=False)
        sound = len(starts) > 0 and starts[0] == 0 and (np.diff(starts) >= 0).all()
        if not sound or starts[-1] != inner.rows:
            raise IndexFormatError(
                f"{folder / FIRST_ROWS}: not the passages of {inner.rows:,} rows; rebuild the index"
            )
        index = cls.__new__(cls)
        index._wrap(inner, [np.diff(starts)])
        return index

    def _documents(self, rows: Rows) -> Any:
        raise ConfigError(
            "PassageIndex: a document has one vector per passage; inner.documents() returns them, "
            "starting at first_passages()"
        )

    def _stored_rows(self) -> int:
        return len(self._first_rows()) - 1


def _checked_counts(counts: ArrayLike | None, passages: int) -> Rows:
    if counts is None:
        return np.ones(passages, dtype=np.int64)
    numbers: NDArray[Any] = np.asarray(counts)
    if numbers.size == 0 and numbers.ndim == 1:
        numbers = numbers.astype(np.int64)
    integers = numbers.ndim == 1 and np.issubdtype(numbers.dtype, np.integer)
    if not integers or (numbers < 0).any():
        raise DataError(
            f"counts: {numbers.dtype} of shape {numbers.shape}, expected one whole number, 0 or "
            "more, for each document"
        )
    if int(numbers.sum()) != passages:
        raise DataError(
            f"counts: {int(numbers.sum()):,} passages of {len(numbers):,} documents, and "
            f"{passages:,} vectors; expected one vector for each passage"
        )
    return numbers.astype(np.int64)
