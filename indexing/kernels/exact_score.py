"""The exact score of one query and one document, compiled; its order of summing is fixed."""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
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
