"""The inner loop of MaxSim as vector instructions: a few tokens with 16 or 32 query tokens."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

from sluice.indexing.flat.tile import has_feature

LANES = 16  # query tokens in a panel
WIDE = has_feature("avx512f")  # 32 registers of 16 numbers; else 16 of 8
_WIDE_BYTES = WIDE and has_feature("avx512vnni")
BYTES = _WIDE_BYTES or has_feature("avxvnni")  # the processor multiplies bytes
PAIRED = _WIDE_BYTES or (WIDE and not BYTES)  # panels are taken two at a time
MANY = 12 if PAIRED else 6  # tokens whose sums fit the registers
FEW = 4
_NUMBER, _FLOAT = ir.IntType(32), ir.FloatType()
_FLOATS, _NUMBERS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_NUMBER, LANES)
# Numbers in a register of the byte product: a panel is one such register, or two.
_STEP = LANES if _WIDE_BYTES else LANES // 2


def _product(tokens: int, panels: int, keep: bool) -> Any:
    """Return an intrinsic for so many tokens and panels.

    It multiplies the rows of ``codes`` from ``first`` on with the panels from ``panel`` on.
    Where the processor multiplies bytes, ``queries`` are signed bytes, four to an int32, ``codes``
    uint8, and ``starts`` (int32, a line for each panel) what the sums begin with: less ``ZERO``
    times the sum of a query's codes. Elsewhere all are float32, and ``codes`` have no ``ZERO``.
    The sums times the tokens' ``scales`` are written to the lines of ``out`` from ``line`` on; or,
    unless ``keep``, the largest of them and of what is there into line ``line``. A line has
    ``LANES`` numbers for each panel of the query; ``column`` is the first that is written.
    Nothing is checked.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def product(
        typing_context: Any,
        queries: Any,
        starts: Any,
        panel: Any,
        codes: Any,
        scales: Any,
        first: Any,
        out: Any,
        line: Any,
        column: Any,
    ) -> Any:
        place = types.intp
        signature = types.void(queries, starts, place, codes, scales, place, out, place, place)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            arrays = {
                at: context.make_array(signature.args[at])(context, builder, arguments[at])
                for at in (0, 1, 3, 4, 6)
            }
            panel, first, line, column = (arguments[at] for at in (2, 5, 7, 8))
            index = panel.type
            cells = builder.extract_value(arrays[0].shape, 1)
            cell_type = _NUMBER if BYTES else _FLOAT
            vector_type = _NUMBERS if BYTES else _FLOATS
            rows = builder.bitcast(arrays[3].data, cell_type.as_pointer())
            row_starts = [
                builder.gep(rows, [builder.mul(builder.add(first, index(token)), cells)])
                for token in range(tokens)
            ]
            panel_starts = [
                builder.gep(
                    arrays[0].data,
                    [builder.mul(builder.mul(builder.add(panel, index(at)), cells), index(LANES))],
                )
                for at in range(panels)
            ]

            def load(data: Any, place: Any, kind: Any) -> Any:
                pointer = builder.gep(data, [place])
                return builder.load(builder.bitcast(pointer, kind.as_pointer()), align=4)

            begins = [
                load(
                    arrays[1].data,
                    builder.mul(builder.add(panel, index(at)), index(LANES)),
                    vector_type,
                )
                for at in range(panels)
            ]
            before = builder.block
            loop, after = builder.append_basic_block("cell"), builder.append_basic_block("done")
            builder.branch(loop)
            builder.position_at_end(loop)
            cell = builder.phi(index)
            sums = [[builder.phi(vector_type) for _ in range(panels)] for _ in range(tokens)]
            factors = [
                load(start, builder.mul(cell, index(LANES)), vector_type) for start in panel_starts
            ]
            results = []
            for token in range(tokens):
                value = builder.load(builder.gep(row_starts[token], [cell]), align=4)
                copies = _spread(builder, value, cell_type)
                results.append(
                    [
                        _add_product(builder, total, copies, factor)
                        for total, factor in zip(sums[token], factors, strict=True)
                    ]
                )
            following = builder.add(cell, index(1))
            cell.add_incoming(index(0), before)
            cell.add_incoming(following, builder.block)
            for totals, added in zip(sums, results, strict=True):
                for total, result, begin in zip(totals, added, begins, strict=True):
                    total.add_incoming(begin, before)
                    total.add_incoming(result, builder.block)
            builder.cbranch(builder.icmp_signed("<", following, cells), loop, after)
            builder.position_at_end(after)
            width = builder.extract_value(arrays[6].shape, 1)
            spread_scales = [
                _spread(
                    builder,
                    builder.load(builder.gep(arrays[4].data, [builder.add(first, index(token))])),
                    _FLOAT,
                )
                for token in range(tokens)
            ]
            for at in range(panels):
                place = builder.add(column, index(at * LANES))
                place = builder.add(builder.mul(line, width), place)
                best = None if keep else load(arrays[6].data, place, _FLOATS)
                for token in range(tokens):
                    total = results[token][at]
                    number = builder.sitofp(total, _FLOATS) if BYTES else total
                    score = builder.fmul(number, spread_scales[token])
                    if best is None:
                        offset = builder.add(place, builder.mul(width, index(token)))
                        _store(builder, score, arrays[6].data, offset)
                    else:
                        greater = builder.fcmp_ordered(">", score, best)
                        best = builder.select(greater, score, best)
                if best is not None:
                    _store(builder, best, arrays[6].data, place)
            return context.get_dummy_value()

        return signature, generate

    return product


def _store(builder: Any, vector: Any, data: Any, place: Any) -> None:
    pointer = builder.gep(data, [place])
    builder.store(vector, builder.bitcast(pointer, _FLOATS.as_pointer()), align=4)


def _spread(builder: Any, value: Any, kind: Any) -> Any:
    """Return 16 copies of a number."""
    vector = ir.VectorType(kind, LANES)
    alone = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _NUMBER(0))
    return builder.shuffle_vector(alone, alone, ir.Constant(_NUMBERS, [0] * LANES))


def _add_product(builder: Any, total: Any, codes: Any, factors: Any) -> Any:
    """Return the sums with the products of one cell."""
    if not BYTES:
        kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.fmuladd.v16f32")
        return builder.call(function, (codes, factors, total))
    part = ir.VectorType(_NUMBER, _STEP)
    kind = ir.FunctionType(part, [part] * 3)
    name = f"llvm.x86.avx512.vpdpbusd.{32 * _STEP}"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    if _STEP == LANES:
        return builder.call(function, (total, codes, factors))
    halves = []
    for first in (0, _STEP):
        places = ir.Constant(ir.VectorType(_NUMBER, _STEP), list(range(first, first + _STEP)))
        three = (builder.shuffle_vector(each, each, places) for each in (total, codes, factors))
        halves.append(builder.call(function, tuple(three)))
    return builder.shuffle_vector(*halves, ir.Constant(_NUMBERS, list(range(LANES))))


reach_many, reach_few, reach_one = (_product(tokens, 1, False) for tokens in (MANY, FEW, 1))
reach_many_pair, reach_few_pair = (_product(tokens, 2, False) for tokens in (MANY, FEW))
keep_many, keep_few, keep_one = (_product(tokens, 1, True) for tokens in (MANY, FEW, 1))
keep_many_pair, keep_few_pair = (_product(tokens, 2, True) for tokens in (MANY, FEW))


@intrinsic  # type: ignore[untyped-decorator]
def reaching(typing_context: Any, sums: Any, line: Any, column: Any, floors: Any) -> Any:
    """Return a bit for each of 16 lanes of a line whose sum reaches its floor, or is NaN."""
    signature = types.int64(sums, types.intp, types.intp, floors)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        scores, limits = (
            context.make_array(signature.args[at])(context, builder, arguments[at]) for at in (0, 3)
        )
        width = builder.extract_value(scores.shape, 1)
        place = builder.add(builder.mul(arguments[1], width), arguments[2])
        vectors = [
            builder.load(builder.bitcast(builder.gep(data, [at]), _FLOATS.as_pointer()), align=4)
            for data, at in ((scores.data, place), (limits.data, arguments[2]))
        ]
        lanes = builder.fcmp_unordered(">=", *vectors)
        return builder.zext(builder.bitcast(lanes, ir.IntType(LANES)), ir.IntType(64))

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator]
def lowest_bit(typing_context: Any, word: Any) -> Any:
    """Return the place of the lowest 1 in a word that is not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate
