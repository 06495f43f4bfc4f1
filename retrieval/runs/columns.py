"""A run as columns, as files hold it, without one Python string per hit."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CHUNK = 1 << 15  # rows hashed at a time, about: stays inside the processor's cache
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_WORD_MASKS = np.array([(1 << (8 * size)) - 1 for size in range(9)], dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class RunColumns:
    """All hits of a run, query after query, each query's hits in ranking order.

    ``starts`` has one entry more than ``queries``: hits of query i are rows starts[i]:starts[i+1].
    ``documents`` is a pyarrow string array; it is decoded query by query, when needed.
    """

    queries: list[str]
    starts: NDArray[np.int64]  # [queries + 1]
    documents: Any  # pyarrow string array [hits]
    scores: NDArray[np.float32]  # [hits]

    def doc_ids(self, place: int) -> list[str]:
        """Return the document ids of the query at ``place``, best first."""
        begin, end = int(self.starts[place]), int(self.starts[place + 1])
        ids: list[str] = self.documents.slice(begin, end - begin).to_pylist()
        return ids

    def query_scores(self, place: int) -> NDArray[np.float32]:
        """Return the scores of the query at ``place``, best first."""
        return self.scores[self.starts[place] : self.starts[place + 1]]

    def top(self, k: int) -> RunColumns:
        """Return the first ``k`` hits of every query."""
        lengths = np.diff(self.starts)
        if k >= int(lengths.max(initial=0)):
            return self
        kept = np.minimum(lengths, max(k, 0))
        starts = np.concatenate(([0], np.cumsum(kept)))
        rows = np.arange(starts[-1]) + np.repeat(self.starts[:-1] - starts[:-1], kept)
        return RunColumns(self.queries, starts, self.documents.take(rows), self.scores[rows])


def columns_of(
    queries: list[str], codes: NDArray[np.int32], documents: Any, scores: NDArray[np.float32]
) -> RunColumns:
    """Group rows by query and put each query's hits in score order, ties by id descending.

    ``codes[i]`` is the place of row i's query in ``queries``. No loop over rows: only ties and
    inversions, where there are any, cost more than one pass.
    """
    first = _first_rows(codes)
    if len(np.unique(codes[first])) < len(first):  # a query's hits are scattered over the file
        order = np.argsort(codes, kind="stable")
        codes, documents, scores = codes[order], documents.take(order), scores[order]
        first = _first_rows(codes)
    tied = _not_falling(scores, first)
    if bool((scores[tied + 1] != scores[tied]).any()):  # some rise
        order = np.argsort(_descending_keys(scores, first))
        documents, scores = documents.take(order), scores[order]
        tied = _not_falling(scores, first)
    if len(tied):
        documents = documents.take(_ties_by_id(tied, documents))
    starts = np.append(first, len(codes)).astype(np.int64)
    return RunColumns([queries[code] for code in codes[first].tolist()], starts, documents, scores)


def _first_rows(codes: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the rows whose query is not that of the row before."""
    return np.concatenate(([0], np.flatnonzero(codes[1:] != codes[:-1]) + 1))


def _not_falling(scores: NDArray[np.float32], first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places whose query has a next row, of a score that is not below theirs."""
    falls = scores[1:] < scores[:-1]
    falls[first[1:] - 1] = True
    return np.flatnonzero(~falls)


def _descending_keys(scores: NDArray[np.float32], first: NDArray[np.int64]) -> NDArray[np.uint64]:
    """One integer per row whose ascending order is: block of rows, then score descending."""
    block = np.zeros(len(scores), dtype=np.uint64)
    block[first[1:]] = 1
    bits = (scores + np.float32(0)).view(np.uint32)  # adding 0 turns -0 into 0: they are tied
    falling = np.where(bits >> 31, bits, bits ^ np.uint32(0x7FFFFFFF))
    return (np.cumsum(block) << np.uint64(32)) | falling


def _ties_by_id(tied: NDArray[np.int64], documents: Any) -> NDArray[np.uint32]:
    """Order each group of equal scores by id descending; ``tied`` are places equal to the next."""
    import pyarrow as pa
    import pyarrow.compute as pc

    places = np.union1d(tied, tied + 1)
    # A place opens a group unless the place before it is tied to it.
    opens = ~np.isin(places - 1, tied, assume_unique=True)
    table = pa.table({"group": np.cumsum(opens), "id": documents.take(places)})
    keys = [("group", "ascending"), ("id", "descending")]
    inside = pc.sort_indices(table, sort_keys=keys).to_numpy()
    order = np.arange(len(documents), dtype=np.uint32)
    order[places] = places[inside]
    return order


def has_repeats(columns: RunColumns) -> bool:
    """Return whether a query has a document twice."""
    starts = columns.starts
    parts = np.unique(np.searchsorted(starts, np.arange(0, starts[-1] + _CHUNK, _CHUNK)))
    for begin, end in pairwise(np.minimum(parts, len(starts) - 1).tolist()):
        hits = columns.documents.slice(starts[begin], starts[end] - starts[begin])
        hashes, bounds = _hashes(hits), starts[begin : end + 1] - starts[begin]
        for query in starmap(slice, pairwise(bounds.tolist())):
            hashes[query].sort()  # of all queries together it takes five times as long
        same = hashes[1:] == hashes[:-1]
        same[bounds[1:-1] - 1] = False  # of two queries
        suspects = np.searchsorted(bounds, np.flatnonzero(same), "right") - 1
        for ids in map(columns.doc_ids, np.unique(begin + suspects).tolist()):
            if len(set(ids)) < len(ids):
                return True
    return False


def _hashes(documents: Any) -> NDArray[np.uint32]:
    """Hash every id from the array's own bytes, eight at a time."""
    import pyarrow as pa

    wide = pa.types.is_large_string(documents.type)
    _, offset_buffer, data_buffer = documents.buffers()
    bounds = np.frombuffer(offset_buffer, np.int64 if wide else np.int32)
    bounds = bounds[documents.offset : documents.offset + len(documents) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8)[bounds[0] : bounds[-1]]
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    words = np.ndarray(len(padded) - 7, np.uint64, padded, strides=(1,))  # at each byte
    starts, lengths = bounds[:-1] - bounds[0], np.diff(bounds)
    hashes = lengths.astype(np.uint64)
    for done in range(0, int(lengths.max(initial=0)), 8):
        left = np.clip(lengths - done, 0, 8)
        word = words[np.minimum(starts + done, len(words) - 1)] & _WORD_MASKS[left]
        hashes = (hashes ^ word) * _MULTIPLIER
        hashes ^= hashes >> np.uint64(29)
    return hashes.astype(np.uint32)  # sorted in half the time, and seldom alike
