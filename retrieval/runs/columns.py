"""A run as columns, as files hold it, without one Python string per hit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CHUNK = 1 << 15  # rows hashed at a time: stays inside the processor's cache
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_QUERY_MULTIPLIER = np.uint64(0xC2B2AE3D27D4EB4F)
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
        return RunColumns(self.queries, starts, _take(self.documents, rows), self.scores[rows])


def columns_of(
    queries: list[str], codes: NDArray[np.int32], documents: Any, scores: NDArray[np.float32]
) -> RunColumns:
    """Group rows by query and put each query's hits in score order, ties by id descending.

    ``codes[i]`` is the place of row i's query in ``queries``. No loop over rows: only ties and
    inversions, where there are any, cost more than one pass.
    """
    changes = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    first = np.concatenate(([0], changes)) if len(codes) else np.empty(0, np.int64)
    blocks = codes[first]
    order: NDArray[np.int64] | None = None
    if len(np.unique(blocks)) < len(blocks):  # a query's hits are scattered over the file
        order = np.argsort(codes, kind="stable")
        codes = codes[order]
        first = np.concatenate(([0], np.flatnonzero(codes[1:] != codes[:-1]) + 1))
        blocks = codes[first]
    ordered = scores if order is None else scores[order]
    same = codes[1:] == codes[:-1]
    if bool((same & (ordered[1:] > ordered[:-1])).any()):
        again = np.argsort(_descending_keys(ordered, first))
        order = again if order is None else order[again]
        ordered = scores[order]
    tied = np.flatnonzero(same & (ordered[1:] == ordered[:-1]))
    if len(tied):
        order = np.arange(len(scores)) if order is None else order
        order = _ties_by_id(order, tied, documents)
    if order is not None:
        documents, ordered = _take(documents, order), scores[order]
    starts = np.append(first, len(codes)).astype(np.int64)
    return RunColumns([queries[code] for code in blocks.tolist()], starts, documents, ordered)


def _descending_keys(scores: NDArray[np.float32], first: NDArray[np.int64]) -> NDArray[np.uint64]:
    """One integer per row whose ascending order is: block of rows, then score descending."""
    block = np.zeros(len(scores), dtype=np.uint64)
    block[first[1:]] = 1
    bits = (scores + np.float32(0)).view(np.uint32)  # adding 0 turns -0 into 0: they are tied
    falling = np.where(bits >> 31, bits, bits ^ np.uint32(0x7FFFFFFF))
    return (np.cumsum(block) << np.uint64(32)) | falling


def _ties_by_id(
    order: NDArray[np.int64], tied: NDArray[np.int64], documents: Any
) -> NDArray[np.int64]:
    """Sort each group of equal scores by id descending; ``tied`` are places equal to the next."""
    import pyarrow as pa
    import pyarrow.compute as pc

    places = np.union1d(tied, tied + 1)
    # A place opens a group unless the place before it is tied to it.
    opens = ~np.isin(places - 1, tied, assume_unique=True)
    table = pa.table({"group": np.cumsum(opens), "id": _take(documents, order[places])})
    keys = [("group", "ascending"), ("id", "descending")]
    inside = pc.sort_indices(table, sort_keys=keys).to_numpy()
    sorted_order = order.copy()
    sorted_order[places] = order[places][inside]
    return sorted_order


def _take(documents: Any, rows: NDArray[np.int64]) -> Any:
    import pyarrow as pa

    return documents.take(pa.array(rows))


def may_repeat(codes: NDArray[np.int32], documents: Any) -> bool:
    """Return whether a (query, document) pair may occur twice; False is certain."""
    keys = _pair_hashes(codes, documents)
    keys.sort()
    return bool((keys[1:] == keys[:-1]).any())


def _pair_hashes(codes: NDArray[np.int32], documents: Any) -> NDArray[np.uint64]:
    """Hash every (query, id) from the array's own bytes, eight at a time."""
    import pyarrow as pa

    wide = pa.types.is_large_string(documents.type)
    _, offset_buffer, data_buffer = documents.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64 if wide else np.int32)
    offsets = offsets[documents.offset : documents.offset + len(documents) + 1]
    data = np.frombuffer(data_buffer, np.uint8)
    spare = np.zeros(8, np.uint8)
    hashes = np.empty(len(documents), dtype=np.uint64)
    for begin in range(0, len(documents), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        bounds = offsets[begin : begin + _CHUNK + 1].astype(np.int64)
        bytes_here = np.concatenate([data[bounds[0] : bounds[-1]], spare])
        words = np.ndarray(len(bytes_here) - 7, np.uint64, bytes_here, strides=(1,))  # at each byte
        starts, lengths = bounds[:-1] - bounds[0], np.diff(bounds)
        mixed = codes[part].astype(np.uint64) * _QUERY_MULTIPLIER + lengths.astype(np.uint64)
        for done in range(0, int(lengths.max(initial=0)), 8):
            left = np.clip(lengths - done, 0, 8)
            word = words[np.minimum(starts + done, len(words) - 1)] & _WORD_MASKS[left]
            mixed = (mixed ^ word) * _MULTIPLIER
            mixed ^= mixed >> np.uint64(29)
        hashes[part] = mixed
    return hashes
