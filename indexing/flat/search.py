"""Searches all documents exactly, block by block, in several threads; or first by signs."""

# mypy: disable-error-code="arg-type, assignment, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from itertools import repeat
from threading import Lock
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing.checks import Dense
from sluice.indexing.flat.compressed_rows import (
    WORD,
    CompressedRows,
    rounded_queries,
    sign_bits,
)
from sluice.indexing.flat.kernel import STRIP, Batch, Best, Block, merge, search_block
from sluice.indexing.flat.margins import margins
from sluice.indexing.flat.tile import LANES, halves_are_faster
from sluice.indexing.hits import Hits, Mask
from sluice.indexing.kernels.calls import in_parallel, lent, thread_count
from sluice.indexing.kernels.ranking import exact_score, offer, read_heaps, signed_key
from sluice.indexing.storage.exact_scores import METRICS, Metric, Norms, norms_of
from sluice.indexing.storage.rows import DenseRows, Picked, picked


@intrinsic  # type: ignore[untyped-decorator]
def _ones(typing_context: Any, word: Any) -> Any:
    """Return the number of bits that are 1."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.IntType(64)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(number, [number]), "llvm.ctpop.i64"
        )
        return builder.call(function, arguments)

    return types.int64(types.uint64), generate


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def count_differences(
    codes: NDArray[np.uint64],
    places: NDArray[np.int64],
    start: int,
    count: int,
    queries: NDArray[np.uint64],
    query: int,
    first: int,
    distances: NDArray[np.uint32],
    histogram: NDArray[np.int64],
) -> None:
    """Write how many signs of a query differ from those of some documents, from ``first`` on.

    The documents are at ``places``, or from ``start`` on when that is empty. ``histogram`` counts
    each distance.
    """
    words = codes.shape[1]
    for i in range(count):
        place = places[i] if len(places) else start + i
        distance = np.int64(0)
        for word in range(words):
            distance += _ones(codes[place, word] ^ queries[query, word])
        distances[first + i] = distance
    for i in range(first, first + count):
        histogram[distances[i]] += 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def nearest(
    distances: NDArray[np.uint32], histogram: NDArray[np.int64], chosen: NDArray[np.int64]
) -> None:
    """Write the places of the ``len(chosen)`` least distances, ascending; of equals the first."""
    closer, last = np.int64(0), np.int64(0)
    while closer + histogram[last] < len(chosen):
        closer += histogram[last]
        last += 1
    equals = len(chosen) - closer
    count = 0
    for i in range(len(distances)):
        if distances[i] <= last:
            if distances[i] == last:
                if equals == 0:
                    continue
                equals -= 1
            chosen[count] = i
            count += 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def offer_rows(
    kind: int,
    queries: NDArray[np.float64],
    query: int,
    query_norm: float,
    vectors: NDArray[np.float32],
    norms: NDArray[np.float64],
    first_row: int,
    rows: NDArray[np.int64],
    heap: NDArray[np.int64],
    size: int,
) -> int:
    """Offer the exact scores of one chunk's rows to a heap; return its size."""
    for row in rows:
        place = row - first_row
        score = exact_score(kind, queries, query, vectors, place, query_norm, norms[place])
        size = offer(heap, size, signed_key(score, row))
    return size


def search_bits(
    rows: DenseRows,
    codes: CompressedRows | None,
    metric: Metric,
    queries: Dense,
    k: int,
    depth: int,
    allowed: Mask | None,
) -> Hits:
    """Return each query's ``k`` best of the ``depth`` allowed documents nearest by their signs.

    Of documents at the same distance the first ones are taken. Memory: 4 bytes for each
    allowed document in each thread.
    """
    if codes is None:
        raise ConfigError("binary search: the index has no signs; use first_pass='binary'")
    total = len(rows) if allowed is None else int(np.count_nonzero(allowed))
    numbers = None if allowed is None else np.flatnonzero(allowed)
    signs, exact, norms = sign_bits(queries), queries.astype(np.float64), norms_of(queries)
    blocks = list(picked(codes.chunks(), max(1, len(codes)), allowed))
    chunks = [(lent(vectors), lent(lengths)) for vectors, lengths in rows.chunks()]
    words = [lent(chunk[0]) for chunk in codes.chunks()]
    starts = np.cumsum([0, *(len(lengths) for _, lengths in chunks)])
    heaps = np.empty((len(queries), k), dtype=np.int64)
    sizes = np.zeros(len(queries), dtype=np.int64)
    kind = METRICS.index(metric)

    def task(first: int, last: int) -> None:
        distances = np.empty(total, dtype=np.uint32)
        chosen = np.empty(min(depth, total), dtype=np.int64)
        for query in range(first, last):
            histogram, done = np.zeros(WORD * signs.shape[1] + 1, dtype=np.int64), 0
            for chunk, _, start, count, places in blocks:
                count_differences(
                    words[chunk], places, start, count, signs, query, done, distances, histogram
                )
                done += count
            nearest(distances, histogram, chosen)
            candidates = chosen if numbers is None else numbers[chosen]
            ends = np.searchsorted(candidates, starts)
            for chunk, (vectors, lengths) in enumerate(chunks):
                part = candidates[ends[chunk] : ends[chunk + 1]]
                sizes[query] = offer_rows(
                    kind,
                    exact,
                    query,
                    norms[query],
                    vectors,
                    lengths,
                    int(starts[chunk]),
                    part,
                    heaps[query],
                    sizes[query],
                )

    in_parallel(task, len(queries))
    hits = Hits.missing(len(queries), k)
    read_heaps(heaps, sizes, hits.rows, hits.scores)
    return hits


DOCUMENT_BLOCK = 4_096  # documents that a thread takes at a time
SMALLEST_BLOCK = 512
BLOCKS_PER_THREAD = 8  # of a small index: enough to even out the threads
ALONE = 1e7  # multiplications below which a second thread costs more than it brings
LARGEST_HEAPS = 1 << 27  # hits that all threads together may hold: 1 GiB
FEW = {"float32": 4, "uint16": 5, "int8": 3}  # queries up to which each is a dot product
FEW_EMULATED = {"float32": 6, "uint16": 8, "int8": 6}  # the same without bfloat16 instructions
SUSPECT_SHARE = 1 / 16  # of a block scored exactly: from here float32 products are cheaper
_NONE: Any = np.empty(0, dtype=np.float32)
_NO_ROWS: Any = np.empty(0, dtype=np.int64)


class FlatSearch:
    """One search: its queries, and the best hits so far of all its threads.

    ``places`` are the documents' rows, an array for each chunk, where they are not consecutive.
    """

    def __init__(
        self,
        rows: DenseRows,
        codes: CompressedRows | None,
        metric: Metric,
        queries: Dense,
        k: int,
        places: Sequence[NDArray[np.int64]] = (),
    ) -> None:
        self._places = places
        self._metric, self._kind, self._k = metric, METRICS.index(metric), k
        self._queries = QueryForms(queries, metric)
        self._floors = np.full(len(queries), -np.inf, dtype=np.float32)
        self._precise = np.zeros(len(queries), dtype=np.bool_)  # these need float32 products
        compressed: Any = repeat(None) if codes is None else codes.chunks()
        self._chunks = tuple(zip(rows.chunks(), compressed, strict=False))
        self._rows, self._norms = rows, rows.norm_range()
        # Made once each; they go when the search does.
        self._block_of, self._batch_of = cache(self._block), cache(self._batch)
        self._source = "float32" if not codes or not len(codes) else str(codes.chunks()[0][0].dtype)

    def hits(self, allowed: Mask | None) -> Hits:
        """Return the best allowed documents of each query."""
        count, width = self._queries.factors.shape
        documents = len(self._rows) if allowed is None else int(np.count_nonzero(allowed))
        threads = thread_count()
        if float(documents) * count * width < ALONE:
            threads = 1
        threads = max(1, min(threads, LARGEST_HEAPS // max(1, count * self._k)))
        size = DOCUMENT_BLOCK
        if threads > 1:
            size = min(max(documents // (threads * BLOCKS_PER_THREAD), SMALLEST_BLOCK), size)
        heaps = np.empty((threads, count, self._k), dtype=np.int64)
        sizes = np.zeros((threads, count), dtype=np.int64)
        blocks, lock = picked(self._rows.chunks(), size, allowed), Lock()

        def work(thread: int, _: int) -> None:
            exactly = np.zeros(count, dtype=np.int64)
            best = Best(heaps[thread], sizes[thread], self._floors, exactly)
            rooms = Rooms(width)
            while (block := _next(blocks, lock)) is not None:
                self._take(block, best, rooms)

        in_parallel(work, threads)
        merge(heaps, sizes)
        hits = Hits.missing(count, self._k)
        read_heaps(heaps[0], sizes[0], hits.rows, hits.scores)
        return hits

    def _take(self, picked: Picked, best: Best, rooms: Rooms) -> None:
        """Search a block for the queries that trust approximate products, then for the others."""
        for full, members in self._groups():
            kind = "float32" if full else self._source
            fast = halves_are_faster() and not full
            few = len(members) <= (FEW if fast else FEW_EMULATED)[kind]
            halves = fast and not few
            block = self._block_of(picked.chunk, full, halves)._replace(
                start=picked.start, documents=picked.documents, places=picked.places
            )
            batch, panels = self._batch_of(members.tobytes(), full, few, halves)
            before = best.exactly[members]
            search_block(self._kind, block, batch, panels, best, *rooms.memory(halves))
            if halves or kind != "float32":
                most = 2 * self._k + SUSPECT_SHARE * block.documents
                suspects = members[best.exactly[members] - before > most]
                if len(suspects):
                    precise = self._precise.copy()
                    precise[suspects] = True
                    self._precise = precise

    def _groups(self) -> list[tuple[bool, NDArray[np.int64]]]:
        """Return the queries that go by approximate products, and those that need float32."""
        precise = self._precise  # another thread may put a new one in its place
        both = ((full, np.flatnonzero(precise == full)) for full in (False, True))
        return [(full, members) for full, members in both if len(members)]

    def _block(self, chunk: int, full: bool, halves: bool) -> Block:
        """Return a chunk as the kernel reads it; the part that is meant is put in later."""
        (vectors, norms), codes = self._chunks[chunk]
        if full or codes is None:
            codes = (vectors, _NONE)
        source, losses, *scales = (lent(array) for array in codes)
        normalised = self._metric == "cosine" and (halves or source.dtype != np.float32)
        first_row = sum(len(held[0][1]) for held in self._chunks[:chunk])
        rows = lent(self._places[chunk]) if self._places else _NO_ROWS
        scale = scales[0] if scales else _NONE
        return Block(
            lent(vectors), lent(norms), source, losses, scale, normalised, first_row, rows, 0, 0,
            _NONE,
        )  # fmt: skip

    def _batch(
        self, chosen: bytes, full: bool, few: bool, halves: bool
    ) -> tuple[Batch, NDArray[Any]]:
        """Return some queries as the kernel reads them, and their panels."""
        queries, members = self._queries, np.frombuffer(chosen, dtype=np.int64).copy()
        normalised = halves or (not full and self._source != "float32")
        least = 1.0 if normalised else self._norms[0]
        lost = queries.losses if halves else np.zeros(len(queries.norms))
        width = queries.factors.shape[1]
        bounds = margins(self._kind, width, queries.norms, lost, least, self._norms[1])
        panels = queries.no_panels(halves) if few else queries.panels(members, halves)
        batch = Batch(queries.exact, queries.norms, members, queries.factors, *bounds)
        return batch, panels


class Rooms:
    """A thread's memory for the documents that it multiplies."""

    def __init__(self, width: int) -> None:
        self._shape = (STRIP, width + width % 2)
        self._held: dict[bool, tuple[NDArray[Any], NDArray[Any]]] = {}

    def memory(self, halves: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the memory as it is filled, and as the product reads it."""
        if halves not in self._held:
            room = np.zeros(self._shape, dtype=np.uint16 if halves else np.float32)
            self._held[halves] = room, room.view(np.uint32) if halves else room
        return self._held[halves]


def _next(blocks: Iterator[Picked], lock: Any) -> Picked | None:
    with lock:
        return next(blocks, None)


class QueryForms:
    """Queries as float64, as factors of the product (unit vectors for ``cosine``), and in panels.

    A panel is 16 queries side by side, cell by cell, as ``tile.multiply`` takes them.
    """

    def __init__(self, queries: Dense, metric: Metric) -> None:
        self.norms = norms_of(queries)
        self.exact = queries.astype(np.float64)
        if metric == "cosine":
            lengths = np.where(self.norms > 0, self.norms, 1.0)[:, None]
            queries = (queries / lengths).astype(np.float32)
        self.factors = lent(np.ascontiguousarray(queries))

    @cached_property
    def _rounded(self) -> tuple[NDArray[np.uint16], Norms]:
        return rounded_queries(self.factors)

    @property
    def losses(self) -> Norms:
        """What each query loses as bfloat16."""
        return self._rounded[1]

    def no_panels(self, halves: bool) -> NDArray[Any]:
        """Return an empty array in place of panels."""
        return np.empty((0, 0, LANES), dtype=np.uint32 if halves else np.float32)

    def panels(self, members: NDArray[np.int64], halves: bool) -> NDArray[Any]:
        """Return some queries in panels ``[panels, cells, LANES]``; zeros fill the last one up."""
        source: NDArray[Any] = self._rounded[0] if halves else self.factors
        count, width = len(members), source.shape[1]
        table = np.zeros((-(-count // LANES) * LANES, width + width % 2), dtype=source.dtype)
        table[:count, :width] = source[members]
        cells = table.view(np.uint32) if halves else table
        by_panel = cells.reshape(-1, LANES, cells.shape[1])
        return np.ascontiguousarray(by_panel.transpose(0, 2, 1))
