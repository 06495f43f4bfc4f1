"""Sixteen four-bit codes at a time: their steps added to a centroid's codes."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

from sluice.indexing.kernels.processor import has_feature

AT_ONCE = 16
TABLES = has_feature("ssse3")  # the processor looks 16 bytes up at once
_BYTE, _SHORT = ir.IntType(8), ir.IntType(16)
_BYTES, _SHORTS = ir.VectorType(_BYTE, AT_ONCE), ir.VectorType(_SHORT, AT_ONCE)


@intrinsic  # type: ignore[untyped-decorator]
def add_sixteen(
    typing_context: Any,
    pairs: Any,
    token: Any,
    at: Any,
    table: Any,
    centroid: Any,
    levels: Any,
    codes: Any,
    line: Any,
) -> Any:
    """Write 32 codes of a token: 16 from ``at`` on, and 16 that far into the second half.

    ``pairs`` is uint8 ``[tokens, half]``, ``table`` uint8 ``[centroids, 2 * half]``, ``levels``
    int8 ``[16]`` and ``codes`` uint8 ``[n, 2 * half]``: the sums, cut off at 1 and 255. For
    processors with ``TABLES``; nothing is checked.
    """
    one = types.intp
    signature = types.void(pairs, one, one, table, one, levels, codes, one)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        packed, centroids, steps, out = (
            context.make_array(signature.args[place])(context, builder, arguments[place])
            for place in (0, 3, 5, 6)
        )
        token, at, centroid, line = (arguments[place] for place in (1, 2, 4, 7))
        half = builder.extract_value(packed.shape, 1)
        width = builder.add(half, half)

        def pointer(array: Any, row: Any, length: Any, place: Any) -> Any:
            data = builder.bitcast(array.data, _BYTE.as_pointer())
            where = builder.gep(data, [builder.add(builder.mul(row, length), place)])
            return builder.bitcast(where, _BYTES.as_pointer())

        def every(kind: Any, number: int) -> Any:
            return ir.Constant(kind, [number] * AT_ONCE)

        lookup = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(_BYTES, [_BYTES, _BYTES]),
            "llvm.x86.ssse3.pshuf.b.128",
        )
        known = builder.load(builder.bitcast(steps.data, _BYTES.as_pointer()), align=1)
        pair = builder.load(pointer(packed, token, half, at), align=1)
        places = builder.and_(pair, every(_BYTES, 15)), builder.lshr(pair, every(_BYTES, 4))
        for codes_of_half, begin in zip(places, (at, builder.add(at, half)), strict=True):
            step = builder.sext(builder.call(lookup, (known, codes_of_half)), _SHORTS)
            base = builder.load(pointer(centroids, centroid, width, begin), align=1)
            total = builder.add(builder.zext(base, _SHORTS), step)
            for limit, comparison in ((1, "<"), (255, ">")):
                beyond = builder.icmp_signed(comparison, total, every(_SHORTS, limit))
                total = builder.select(beyond, every(_SHORTS, limit), total)
            builder.store(builder.trunc(total, _BYTES), pointer(out, line, width, begin), align=1)
        return context.get_dummy_value()

    return signature, generate
