"""Searches by one bit a dimension: the documents with most signs in common are scored exactly."""

# mypy: disable-error-code="arg-type, assignment, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing.checks import Dense
from sluice.indexing.flat.compressed_rows import WORD, CompressedRows, sign_bits
from sluice.indexing.hits import Hits
from sluice.indexing.kernels.calls import in_parallel, lent
from sluice.indexing.kernels.exact_score import exact_score
from sluice.indexing.kernels.ordering import offer, read_heaps, signed_key
from sluice.indexing.live_rows import Mask
from sluice.indexing.storage.exact_scores import METRICS, Metric, norms_of
from sluice.indexing.storage.rows import DenseRows, picked


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
