"""Kernels of search by signs: Hamming distances, the nearest documents, their exact scores."""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from sluice.indexing.kernels.exact_score import exact_score
from sluice.indexing.kernels.heap import offer, signed_key


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
