"""Codes of four or two bits, many at a time: their steps added to a centroid's codes."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

from sluice.indexing.kernels.processor import has_feature

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
