"""Kernels that rank: the exact score of a document; sorts, selects and a heap of hits."""

# mypy: disable-error-code="arg-type, assignment, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from sluice.indexing.hits import LARGEST_SCORE


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def put(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Write an array's values to the beginning of another, which is not shorter."""
    for i in range(len(source)):
        target[i] = source[i]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def ascending(keys: NDArray[Any]) -> NDArray[Any]:
    """Return the keys in ascending order."""
    return np.sort(keys)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def select_largest(keys: NDArray[Any], k: int) -> Any:
    """Bring the ``k`` largest keys to the beginning, in any order; return the smallest of them.

    Hoare's selection with the median of three; ``k`` is from 1 to the number of keys.
    """
    low, high, last = 0, len(keys) - 1, k - 1
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] > keys[low]:
            keys[low], keys[middle] = keys[middle], keys[low]
        if keys[high] > keys[low]:
            keys[low], keys[high] = keys[high], keys[low]
        if keys[high] > keys[middle]:
            keys[middle], keys[high] = keys[high], keys[middle]
        pivot = keys[middle]
        left, right = low, high
        while left <= right:
            while keys[left] > pivot:
                left += 1
            while keys[right] < pivot:
                right -= 1
            if left <= right:
                keys[left], keys[right] = keys[right], keys[left]
                left += 1
                right -= 1
        if last <= right:
            high = right
        elif last >= left:
            low = left
        else:
            break
    return keys[last]


Keys = NDArray[np.int64]

# A key holds the score's bits, then the row reversed: a greater key is a better hit, and of equal
# scores the lower row. The bits of a float32 that is not negative, read as an integer, are in the
# order of the floats.
ROW_MASK = (1 << 32) - 1
LARGEST_BITS = np.int32(0x7F7FFFFF)  # of the largest float32; an overflow counts as it
_ALL_BUT_SIGN = np.int32(0x7FFFFFFF)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def key_of(bits: int, row: int) -> int:
    """Return the key of a score's bits and a row."""
    return (np.int64(bits) << 32) | (ROW_MASK - row)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def row_of(key: int) -> int:
    """Return the row of a key."""
    return ROW_MASK - (key & ROW_MASK)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def score_of(key: int) -> Any:
    """Return the float32 whose bits are the key's upper half."""
    return np.int32(key >> 32).view(np.float32)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def bits_of(score: np.float32) -> Any:
    """Return the bits of a float32 as an integer."""
    return np.float32(score).view(np.int32)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def offer(heap: Keys, size: int, key: int) -> int:
    """Add a key, or replace the smallest of a full heap by a greater one; return the new size."""
    if size < len(heap):
        place = size
        while place > 0:
            parent = (place - 1) >> 1
            if heap[parent] <= key:
                break
            heap[place] = heap[parent]
            place = parent
        heap[place] = key
        return size + 1
    if key > heap[0]:
        _sink(heap, size, key)
    return size


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _sink(heap: Keys, size: int, key: int) -> None:
    """Replace the smallest key."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = key


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def signed_key(score: np.float32, row: int) -> Any:
    """Return a key that orders hits by score, then by row reversed; -0.0 counts as 0.0."""
    bits = np.float32(score + np.float32(0.0)).view(np.int32)
    # The bits of negative floats fall as the floats rise: all but the sign is turned over.
    bits = np.int32(bits ^ ((bits >> np.int32(31)) & _ALL_BUT_SIGN))
    return (np.int64(bits) << 32) | (ROW_MASK - row)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def signed_score(key: int) -> Any:
    """Return the float32 score of a key."""
    bits = np.int32(key >> 32)
    return np.int32(bits ^ ((bits >> np.int32(31)) & _ALL_BUT_SIGN)).view(np.float32)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def read_heaps(
    heaps: NDArray[np.int64],
    sizes: NDArray[np.int64],
    rows: NDArray[np.int64],
    scores: NDArray[np.float32],
) -> None:
    """Write each heap's rows and scores ``[n, k]``, best first; places left over stay."""
    for line in range(len(heaps)):
        size = sizes[line]
        keys = ascending(heaps[line, :size])
        for place in range(size):
            key = keys[size - 1 - place]
            rows[line, place] = row_of(key)
            scores[line, place] = signed_score(key)


INNER, COSINE, DISTANCE = 0, 1, 2  # the metrics ip, cosine and l2 by number
_LARGEST = float(LARGEST_SCORE)
LANES, VECTORS = 8, 4  # 32 partial sums, so that the processor adds several numbers at once
STEP = LANES * VECTORS
_DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)


@intrinsic  # type: ignore[untyped-decorator]
def whole_sum(
    typing_context: Any, squares: Any, queries: Any, query: Any, documents: Any, document: Any
) -> Any:
    """Return the sum over the whole steps of ``STEP`` dimensions; the rest is the caller's.

    Of products, or with ``squares`` of squared differences; ``queries`` float64 and ``documents``
    float32, both ``[n, width]``. Partial sum ``i`` takes each dimension ``i`` modulo ``STEP``;
    halves are then added until one is left. Every operation rounds by itself, on any processor.
    """
    signature = types.float64(types.boolean, queries, types.intp, documents, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        left, right = (
            context.make_array(signature.args[place])(context, builder, arguments[place])
            for place in (1, 3)
        )
        squared, index = arguments[0], arguments[2].type
        width = builder.extract_value(right.shape, 1)
        whole = builder.mul(builder.sdiv(width, index(STEP)), index(STEP))
        starts = [
            builder.gep(array.data, [builder.mul(arguments[place], width)])
            for array, place in ((left, 2), (right, 4))
        ]
        zero = ir.Constant(_DOUBLES, [0.0] * LANES)
        before = builder.block
        head, body, after = (builder.append_basic_block(name) for name in ("head", "step", "done"))
        builder.branch(head)
        builder.position_at_end(head)
        at = builder.phi(index)
        at.add_incoming(index(0), before)
        totals = [builder.phi(_DOUBLES) for _ in range(VECTORS)]
        for total in totals:
            total.add_incoming(zero, before)
        builder.cbranch(builder.icmp_signed("<", at, whole), body, after)
        builder.position_at_end(body)
        for vector, total in enumerate(totals):
            place = builder.add(at, index(vector * LANES))
            ours, theirs = (
                builder.load(
                    builder.bitcast(builder.gep(start, [place]), kind.as_pointer()), align=4
                )
                for start, kind in zip(starts, (_DOUBLES, _FLOATS), strict=True)
            )
            wide = builder.fpext(theirs, _DOUBLES)
            gap = builder.fsub(wide, ours)
            first = builder.select(squared, gap, wide)
            second = builder.select(squared, gap, ours)
            total.add_incoming(builder.fadd(total, builder.fmul(first, second)), body)
        at.add_incoming(builder.add(at, index(STEP)), body)
        builder.branch(head)
        builder.position_at_end(after)
        low, high = builder.fadd(totals[0], totals[2]), builder.fadd(totals[1], totals[3])
        return _added(builder, builder.fadd(low, high))

    return signature, generate


def _added(builder: Any, vector: Any) -> Any:
    """Return the sum of a vector: its halves are added until one number is left."""
    count = LANES
    number = ir.IntType(32)
    while count > 1:
        count //= 2
        halves = [
            builder.shuffle_vector(
                vector, vector, ir.Constant(ir.VectorType(number, count), list(places))
            )
            for places in (range(count), range(count, 2 * count))
        ]
        vector = builder.fadd(*halves)
    return builder.extract_element(vector, number(0))


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def exact_score(
    kind: int,
    queries: NDArray[np.float64],
    query: int,
    documents: Any,
    document: int,
    query_norm: float,
    norm: float,
) -> Any:
    """Return one score, float32: of ``queries[query]`` and ``documents[document]``."""
    width = documents.shape[1]
    total = whole_sum(kind == DISTANCE, queries, query, documents, document)
    for i in range(width - width % STEP, width):
        value = np.float64(documents[document, i])
        if kind == DISTANCE:
            gap = value - queries[query, i]
            total += gap * gap
        else:
            total += value * queries[query, i]
    if kind == DISTANCE:
        total = -total
    elif kind == COSINE:
        length = query_norm * norm
        total = total / length if length > 0 else 0.0
    return np.float32(min(max(total, -_LARGEST), _LARGEST))


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def score_documents(
    kind: int,
    queries: NDArray[np.float64],
    documents: Any,
    query_norm: float,
    norms: NDArray[np.float64],
    scores: NDArray[np.float32],
) -> None:
    """Write the score of one query ``[1, width]`` with each document."""
    for place in range(len(documents)):
        scores[place] = exact_score(kind, queries, 0, documents, place, query_norm, norms[place])
