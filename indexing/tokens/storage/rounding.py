"""Token vectors rounded to codes of eight, four or two bits, what that lost; and read back."""

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

from sluice.indexing.kernels.processor import has_feature
from sluice.indexing.tokens.storage.segment import FLOAT16, FLOAT32, RESIDUAL, ZERO, Segment

TABLES = has_feature("ssse3")  # the processor looks 16 bytes up at once
FEW = 16  # bytes at a time
MANY = 32 if has_feature("avx2") else FEW  # 64 take as long
_LOOKUPS = {
    16: "llvm.x86.ssse3.pshuf.b.128",
    32: "llvm.x86.avx2.pshuf.b",
}
_BYTE = ir.IntType(8)


def _adder(count: int, bits: int) -> Any:
    """Return an intrinsic for so many bytes of so many bits a code.

    It writes a token's codes: those in ``count`` bytes of ``packed`` from ``at`` on. A byte's first
    code, in its lowest bits, is that of its own place; the next is a part of a token further on,
    and so on. ``packed`` is uint8 ``[tokens, part]``, ``table`` uint8 ``[centroids, width]``, with
    a part for each code of a byte, ``levels`` int8 ``[16]`` and ``codes`` uint8 ``[n, width]``: the
    sums, cut off at 1 and 255. For processors with ``TABLES``; nothing is checked.
    """
    many = ir.VectorType(_BYTE, count)

    @intrinsic  # type: ignore[untyped-decorator]
    def add(
        typing_context: Any,
        packed: Any,
        token: Any,
        at: Any,
        table: Any,
        centroid: Any,
        levels: Any,
        codes: Any,
        line: Any,
    ) -> Any:
        one = types.intp
        signature = types.void(packed, one, one, table, one, levels, codes, one)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            source, centroids, steps, out = (
                context.make_array(signature.args[place])(context, builder, arguments[place])
                for place in (0, 3, 5, 6)
            )
            token, at, centroid, line = (arguments[place] for place in (1, 2, 4, 7))
            part = builder.extract_value(source.shape, 1)
            width = builder.extract_value(centroids.shape, 1)

            def pointer(array: Any, row: Any, length: Any, place: Any) -> Any:
                data = builder.bitcast(array.data, _BYTE.as_pointer())
                where = builder.gep(data, [builder.add(builder.mul(row, length), place)])
                return builder.bitcast(where, many.as_pointer())

            def every(number: int) -> Any:
                return ir.Constant(many, [number] * count)

            def call(name: str, *given: Any) -> Any:
                kind = ir.FunctionType(many, [many] * len(given))
                return builder.call(
                    cgutils.get_or_insert_function(builder.module, kind, name), given
                )

            sixteen = ir.VectorType(_BYTE, FEW)
            known = builder.load(builder.bitcast(steps.data, sixteen.as_pointer()), align=1)
            places = ir.VectorType(ir.IntType(32), count)
            copies = ir.Constant(places, [place % FEW for place in range(count)])
            known = builder.shuffle_vector(known, known, copies)
            together = builder.load(pointer(source, token, part, at), align=1)
            begin = at
            for shift in range(0, 8, bits):
                own = builder.and_(builder.lshr(together, every(shift)), every(15))
                step = call(_LOOKUPS[count], known, own)
                base = builder.load(pointer(centroids, centroid, width, begin), align=1)
                # Codes less 128 are signed bytes, whose sums the processor cuts off itself.
                total = call(f"llvm.sadd.sat.v{count}i8", builder.xor(base, every(128)), step)
                total = builder.xor(total, every(128))
                total = call(f"llvm.umax.v{count}i8", total, every(1))
                builder.store(total, pointer(out, line, width, begin), align=1)
                begin = builder.add(begin, part)
            return context.get_dummy_value()

        return signature, generate

    return add


# Of four bits, and of two.
add_many, add_few = (_adder(count, 4) for count in (MANY, FEW))
add_many_twos, add_few_twos = (_adder(count, 2) for count in (MANY, FEW))


LEVELS = 127  # of a code, to either side of zero


# Values whose products with a query's are far from float32's ends. Of documents with others
# nothing is promised: they are always scored exactly.
SMALLEST, LARGEST = 1e-15, 1e15
LARGEST_VALUE = np.float32(np.finfo(np.float32).max)
LARGEST_SCALE = np.float32(1e36)  # of codes whose values float32 holds for certain
_UP = 1 + 2.0**-20  # more than float32 and the sums of float64 can round down
_SIXTEEN = np.uint32(16)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def round_to_codes(
    values: NDArray[np.float32],
    bounds: NDArray[np.int64],
    first: int,
    last: int,
    keeps_values: bool,
    codes: NDArray[np.uint8],
    scales: NDArray[np.float32],
    losses: NDArray[np.float32],
    reaches: NDArray[np.float32],
) -> None:
    """Write codes, scales, losses and reaches of documents ``first`` to ``last``.

    Without ``keeps_values`` the codes are the stored vectors, and nothing is lost.
    """
    width = values.shape[1]
    for document in range(first, last):
        loss, reach, known = 0.0, 0.0, True
        for token in range(bounds[document], bounds[document + 1]):
            largest = np.float32(0)
            for i in range(width):
                largest = max(largest, abs(values[token, i]))
            for i in range(width, codes.shape[1]):
                codes[token, i] = ZERO
            scale = np.float32(largest / np.float32(LEVELS))
            scales[token] = scale
            inverse = LEVELS / np.float64(largest) if largest > 0 else 0.0
            lost, length = 0.0, 0.0
            for i in range(width):
                value = np.float64(values[token, i])
                whole = np.rint(value * inverse)
                codes[token, i] = np.uint8(np.int64(whole) + ZERO)
                coded = whole * np.float64(scale)
                lost += (value - coded) * (value - coded)
                length += coded * coded
            if largest > 0 and not SMALLEST <= largest <= LARGEST:
                known = False
            loss, reach = max(loss, lost), max(reach, length)
        reaches[document] = np.sqrt(reach) * _UP if known else np.float32(0)
        losses[document] = np.sqrt(loss) * _UP if keeps_values else np.float32(0)
        if not known:
            losses[document] = np.inf


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def wide_of(segment: Segment) -> int:
    """Return the number of codes of a token."""
    codes: int = segment.codes.shape[1]
    wide: int = segment.table.shape[1]
    return wide if segment.kind >= RESIDUAL else codes


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def scale_of(kind: int, scales: Any, token: int) -> Any:
    """Return the scale of a token's codes."""
    if kind >= RESIDUAL:
        return np.uint32(np.uint32(scales[token]) << _SIXTEEN).view(np.float32)
    return np.float32(scales[token])


# Arrays are handed down by themselves in loops over tokens: each array that is taken out of a named
# tuple is counted by an atomic instruction, ten times what the work on one token takes.


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def add_residuals(
    packed: Any,
    first: int,
    last: int,
    centroids: Any,
    table: Any,
    levels: Any,
    zero: int,
    codes: Any,
) -> None:
    """Write the codes of tokens of residuals, centroids' and their own steps, less ``zero``.

    They are written from line 0 on; ``zero`` is 0 for codes of one byte. All tokens of a document
    are one call: a call counts its arrays, which takes longer than the work on a token.
    """
    part = packed.shape[1]
    parts, bits = (2, 4) if table.shape[1] == 2 * part else (4, 2)
    whole = part - part % FEW if TABLES and codes.itemsize == 1 else 0
    for token in range(first, last):
        centroid = min(np.int64(centroids[token]), len(table) - 1)  # of edited files
        at = token - first
        i = 0
        if parts == 2:
            while i + MANY <= whole:
                add_many(packed, token, i, table, centroid, levels, codes, at)
                i += MANY
            while i < whole:
                add_few(packed, token, i, table, centroid, levels, codes, at)
                i += FEW
        else:
            while i + MANY <= whole:
                add_many_twos(packed, token, i, table, centroid, levels, codes, at)
                i += MANY
            while i < whole:
                add_few_twos(packed, token, i, table, centroid, levels, codes, at)
                i += FEW
        for place in range(whole, part):
            together = np.int64(packed[token, place])
            for shift in range(parts):
                step = levels[(together >> (shift * bits)) & 15]
                total = np.int32(table[centroid, shift * part + place]) + np.int32(step)
                codes[at, shift * part + place] = min(max(total, 1), 255) - zero


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def copy_codes(source: Any, token: int, zero: int, codes: Any, at: int) -> None:
    """Write a token's codes, less ``zero``."""
    for i in range(codes.shape[1]):
        codes[at, i] = np.int32(source[token, i]) - np.int32(zero)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def bound_codes(
    segment: Segment,
    first: int,
    last: int,
    losses: NDArray[np.float32],
    reaches: NDArray[np.float32],
) -> None:
    """Write losses and reaches of documents of residuals, whose codes are all that is stored."""
    wide = wide_of(segment)
    codes = np.empty((1, wide), np.uint8)
    kind, bounds, _, _, packed, scales, centroids, _, table, levels = segment
    for document in range(first, last):
        reach, known = 0.0, True
        for token in range(bounds[document], bounds[document + 1]):
            scale = np.float64(scale_of(kind, scales, token))
            if scale > 0:
                add_residuals(packed, token, token + 1, centroids, table, levels, 0, codes)
                length = 0.0
                for i in range(wide):
                    whole = np.float64(np.int32(codes[0, i]) - ZERO)
                    length += whole * whole
                reach = max(reach, np.sqrt(length) * scale)
                if not SMALLEST <= scale * LEVELS <= LARGEST:
                    known = False
        reaches[document] = reach * _UP if known else np.float32(0)
        losses[document] = np.float32(0) if known else np.inf


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _copy(values: Any, token: int, room: Any, at: int) -> None:
    for i in range(room.shape[1]):
        room[at, i] = np.float32(values[token, i])


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _widen(halves: Any, token: int, room: Any, at: int) -> None:
    for i in range(room.shape[1]):
        bits = np.uint32(halves[token, i])
        # Exponent and fraction moved into place, less the difference of the exponents' biases.
        word = np.uint32((bits & np.uint32(0x7FFF)) << np.uint32(13))
        value = word.view(np.float32) * np.float32(2.0**112)
        room[at, i] = value * (np.float32(1) - np.float32(2) * np.float32(bits >> np.uint32(15)))


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _decode(codes: Any, token: int, scale: Any, room: Any, at: int) -> None:
    for i in range(room.shape[1]):
        room[at, i] = np.float32(np.int32(codes[token, i]) - np.int32(ZERO)) * scale
    if scale > LARGEST_SCALE:
        for i in range(room.shape[1]):
            room[at, i] = min(max(room[at, i], -LARGEST_VALUE), LARGEST_VALUE)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def read_token(
    kind: int,
    codes: Any,
    scales: Any,
    centroids: Any,
    values: Any,
    table: Any,
    levels: Any,
    token: int,
    scratch: Any,
    room: Any,
    at: int,
) -> None:
    """Write a token's stored vector as float32 into ``room[at]``.

    The arrays are a ``Segment``'s; ``scratch`` is uint8 ``[1, cells * CELL]``.
    """
    if kind == FLOAT32:
        _copy(values, token, room, at)
    elif kind == FLOAT16:
        _widen(values, token, room, at)
    elif kind >= RESIDUAL:
        add_residuals(codes, token, token + 1, centroids, table, levels, 0, scratch)
        _decode(scratch, 0, scale_of(kind, scales, token), room, at)
    else:
        _decode(codes, token, scale_of(kind, scales, token), room, at)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def read_tokens(
    segment: Segment, places: NDArray[np.int64], starts: NDArray[np.int64], room: Any
) -> None:
    """Write the stored vectors of documents at ``places``, each from its place in ``starts`` on."""
    scratch = np.empty((1, wide_of(segment)), np.uint8)
    kind, bounds, _, _, codes, scales, centroids, values, table, levels = segment
    for i in range(len(places)):
        first = bounds[places[i]]
        for token in range(first, bounds[places[i] + 1]):
            at = starts[i] + token - first
            read_token(
                kind, codes, scales, centroids, values, table, levels, token, scratch, room, at
            )
