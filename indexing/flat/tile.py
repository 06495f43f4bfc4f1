"""Vectors rounded to bfloat16 or 8 bits, and the inner loop of their product with 16 queries."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from sluice.encoders.foundation.measured import forced, measured
from sluice.indexing.kernels.processor import has_feature

LEVELS = 127  # of an 8-bit code, to either side of zero
SMALLEST_NORM = 1e-20  # shorter vectors' losses are not measured: nothing is promised of them
LARGEST_NORM = 1e20  # nor those of longer ones
# The sums below may be reordered and fused; nothing is assumed of NaN and infinities.
ANY_ORDER = {"reassoc", "contract", "nsz"}
_LAST, _ONE, _SIXTEEN = np.uint32(0x7FFF), np.uint32(1), np.uint32(16)
_UPPER = np.uint32(0xFFFF0000)


# Arrays and places in them are handed down, not slices: each slice of numba's is counted by an
# atomic instruction.


@njit(cache=True, nogil=True, fastmath=ANY_ORDER)  # type: ignore[untyped-decorator]
def round_to_bfloat16(
    vectors: Any,
    place: int,
    norm: float,
    normalise: bool,
    codes: Any,
    at: int,
) -> Any:
    """Write one vector's code: the bits of the nearest bfloat16, ties to even; return the loss.

    The loss is at least ``|v - v'| / |v|``.
    """
    known = SMALLEST_NORM <= norm <= LARGEST_NORM
    shrink = np.float32(1 / norm) if known else np.float32(1)
    factor = shrink if normalise else np.float32(1)
    rest = np.float32(1) if normalise else shrink
    total = np.float32(0)
    width = vectors.shape[1]
    for i in range(width):
        value = np.float32(vectors[place, i] * factor)
        word = value.view(np.uint32)
        word = np.uint32(word + _LAST + ((word >> _SIXTEEN) & _ONE))
        codes[at, i] = np.uint16(word >> _SIXTEEN)
        lost = (value - np.uint32(word & _UPPER).view(np.float32)) * rest
        total += lost * lost
    if norm > 0 and not known:
        return np.float32(np.inf)
    return np.sqrt(total) * np.float32(1 + (width + 8) * 2.0**-23) + np.float32(2.0**-21)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def round_all_to_bfloat16(
    vectors: NDArray[np.float32],
    norms: NDArray[np.float64],
    normalise: bool,
    first: int,
    last: int,
    codes: NDArray[np.uint16],
    losses: NDArray[np.float32],
) -> None:
    """Write the codes and losses of vectors ``first`` to ``last``."""
    for at in range(first, last):
        losses[at] = round_to_bfloat16(vectors, at, norms[at], normalise, codes, at)


@njit(cache=True, nogil=True, fastmath=ANY_ORDER)  # type: ignore[untyped-decorator]
def round_all_to_int8(
    vectors: NDArray[np.float32],
    norms: NDArray[np.float64],
    normalise: bool,
    first: int,
    last: int,
    codes: NDArray[np.int8],
    scales: NDArray[np.float32],
    losses: NDArray[np.float32],
) -> None:
    """Write codes from -127 to 127, each vector's scale, and losses as above."""
    width = vectors.shape[1]
    for at in range(first, last):
        vector, code, norm = vectors[at], codes[at], norms[at]
        known = SMALLEST_NORM <= norm <= LARGEST_NORM
        shrink = np.float32(1 / norm) if known else np.float32(1)
        factor = shrink if normalise else np.float32(1)
        largest = np.float32(0)
        for i in range(width):
            largest = max(largest, abs(vector[i] * factor))
        scale = largest / np.float32(LEVELS)
        inverse = np.float32(LEVELS) / largest if known else np.float32(0)
        rest = np.float32(1) if normalise else shrink
        total = np.float32(0)
        for i in range(width):
            value = vector[i] * factor
            whole = np.rint(value * inverse)
            code[i] = np.int8(whole)
            lost = (value - whole * scale) * rest
            total += lost * lost
        scales[at] = scale if known else np.float32(0)
        losses[at] = np.sqrt(total) * np.float32(1 + (width + 8) * 2.0**-23) + np.float32(2.0**-21)
        if norm > 0 and not known:
            losses[at] = np.inf


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def widen(codes: Any, place: int, room: Any, at: int) -> None:
    """Write one vector's codes (int8, or bfloat16 as uint16) as the float32 numbers they are."""
    if codes.itemsize == 2:
        for i in range(codes.shape[1]):
            room[at, i] = np.uint32(np.uint32(codes[place, i]) << _SIXTEEN).view(np.float32)
    else:
        for i in range(codes.shape[1]):
            room[at, i] = np.float32(codes[place, i])


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def whole_to_bfloat16(codes: Any, place: int, room: Any, at: int) -> None:
    """Write one vector's 8-bit codes as bfloat16, which holds them exactly."""
    for i in range(codes.shape[1]):
        room[at, i] = np.uint16(np.float32(codes[place, i]).view(np.uint32) >> _SIXTEEN)


_NUMBERS_EACH, _TIMES = 384, 500  # of a product that is timed, a millisecond or two
LANES = 16  # queries in one vector register of 512 bits; narrower processors take several


class _Bfloat16(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bfloat16)

    def __hash__(self) -> int:
        return hash(_Bfloat16)


_NUMBER, _FLOAT = ir.IntType(32), ir.FloatType()
_FLOATS, _NUMBERS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_NUMBER, LANES)
_PAIRS = ir.VectorType(_Bfloat16(), 2 * LANES)


def has_bfloat16() -> bool:
    """Return whether the processor multiplies bfloat16 numbers."""
    return has_feature("avx512bf16") and has_feature("avx512f")


# Sums of 16 that fit the registers: 24 of 32, or 6 in two halves each of 16.
DOCUMENTS = 24 if has_feature("avx512f") else 6


@intrinsic  # type: ignore[untyped-decorator]
def multiply(
    typing_context: Any, queries: Any, panel: Any, rows: Any, first: Any, sums: Any
) -> Any:
    """Write the inner products of a panel of queries and the rows from ``first`` on.

    Cells of 4 bytes are float32 numbers, or pairs of bfloat16 numbers as uint32. ``queries`` is
    ``[panels, cells, LANES]``, ``rows`` ``[n, cells]`` with ``DOCUMENTS`` rows from ``first``, and
    ``sums`` float32 ``[DOCUMENTS, LANES]``. Nothing is checked.
    """
    signature = types.void(queries, types.intp, rows, types.intp, sums)
    paired = rows.dtype == types.uint32
    wide = _PAIRS if paired else _FLOATS

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        query_cells, row_cells, out = (
            context.make_array(signature.args[place])(context, builder, arguments[place])
            for place in (0, 2, 4)
        )
        panel, first = arguments[1], arguments[3]
        index = panel.type
        cells = builder.extract_value(row_cells.shape, 1)
        panel_cells = builder.mul(cells, index(LANES))
        source = builder.gep(query_cells.data, [builder.mul(panel, panel_cells)])
        starts = [
            builder.gep(row_cells.data, [builder.mul(builder.add(first, index(d)), cells)])
            for d in range(DOCUMENTS)
        ]
        function = _step(builder.module, paired)
        before = builder.block
        loop, after = builder.append_basic_block("cell"), builder.append_basic_block("done")
        builder.branch(loop)
        builder.position_at_end(loop)
        cell = builder.phi(index)
        totals = [builder.phi(_FLOATS) for _ in starts]
        pointer = builder.gep(source, [builder.mul(cell, index(LANES))])
        factors = builder.load(builder.bitcast(pointer, wide.as_pointer()), align=4)
        results = []
        for start, total in zip(starts, totals, strict=True):
            value = builder.load(builder.gep(start, [cell]))
            spread = _spread(builder, value, paired, wide)
            order = (total, factors, spread) if paired else (factors, spread, total)
            results.append(builder.call(function, order))
        following = builder.add(cell, index(1))
        for phi, begin, following_value in (
            (cell, index(0), following),
            *(
                (total, ir.Constant(_FLOATS, [0.0] * LANES), result)
                for total, result in zip(totals, results, strict=True)
            ),
        ):
            phi.add_incoming(begin, before)
            phi.add_incoming(following_value, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, cells), loop, after)
        builder.position_at_end(after)
        for d, result in enumerate(results):
            pointer = builder.gep(out.data, [index(d * LANES)])
            builder.store(result, builder.bitcast(pointer, _FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    return signature, generate


def _spread(builder: Any, value: Any, paired: bool, wide: Any) -> Any:
    """Return 16 copies of a cell."""
    value = value if paired else builder.bitcast(value, _NUMBER)
    alone = builder.insert_element(ir.Constant(_NUMBERS, ir.Undefined), value, _NUMBER(0))
    copies = builder.shuffle_vector(alone, alone, ir.Constant(_NUMBERS, [0] * LANES))
    return builder.bitcast(copies, wide)


def _step(module: Any, paired: bool) -> Any:
    """Return LLVM's function for one step of 16 sums."""
    if paired:
        kind = ir.FunctionType(_FLOATS, [_FLOATS, _PAIRS, _PAIRS])
        return cgutils.get_or_insert_function(module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    return cgutils.get_or_insert_function(module, kind, "llvm.fmuladd.v16f32")


@functools.cache
def halves_are_faster() -> bool:
    """Return whether this processor multiplies bfloat16 faster than float32, by a short timing."""
    if not has_bfloat16() or forced() == "float32":
        return False
    if forced() == "bfloat16":
        return True

    def products(kind: Any, cells: int) -> Callable[[], object]:
        queries, rows = np.ones((1, cells, LANES), kind), np.ones((DOCUMENTS, cells), kind)
        sums = np.empty((DOCUMENTS, LANES), np.float32)
        return lambda: _repeat(queries, rows, sums, _TIMES)

    ways = {"float32": products(np.float32, _NUMBERS_EACH)}
    ways["bfloat16"] = products(np.uint32, _NUMBERS_EACH // 2)
    return measured(f"flat products; numba {numba.__version__}", ways).fastest == "bfloat16"


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _repeat(queries: Any, rows: Any, sums: Any, times: int) -> None:
    for _ in range(times):
        multiply(queries, 0, rows, 0, sums)


@intrinsic  # type: ignore[untyped-decorator]
def reaching(
    typing_context: Any,
    sums: Any,
    line: Any,
    bounds: Any,
    scale: Any,
    offset: Any,
    reach: Any,
    loss: Any,
) -> Any:
    """Return a bit for each lane whose score may reach its floor, or is NaN.

    Of line ``line`` of ``sums`` ``[DOCUMENTS, LANES]``, the scores are ``sums * scale + offset``;
    ``bounds`` ``[4, LANES]`` are the factors of ``reach`` and ``loss`` in the error, a constant
    error, and the floors.
    """
    one = types.float32
    signature = types.int64(sums, types.intp, bounds, one, one, one, one)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        scores, limits = (
            context.make_array(signature.args[place])(context, builder, arguments[place])
            for place in (0, 2)
        )
        index = arguments[1].type

        def vector(array: Any, place: Any) -> Any:
            pointer = builder.gep(array.data, [builder.mul(place, index(LANES))])
            return builder.load(builder.bitcast(pointer, _FLOATS.as_pointer()), align=4)

        scale, offset, reach, loss = (
            _spread(builder, argument, False, _FLOATS) for argument in arguments[3:]
        )
        direct, lossy, constant, floors = (vector(limits, index(place)) for place in range(4))
        most = builder.fadd(builder.fmul(vector(scores, arguments[1]), scale), offset)
        error = builder.fadd(builder.fmul(direct, reach), builder.fmul(lossy, loss))
        most = builder.fadd(most, builder.fadd(error, constant))
        lanes = builder.fcmp_unordered(">=", most, floors)
        return builder.zext(builder.bitcast(lanes, ir.IntType(LANES)), ir.IntType(64))

    return signature, generate
