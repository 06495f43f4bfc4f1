"""The inner loop of MaxSim as vector instructions: a few tokens with 16 or 32 query tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing.kernels.calls import lent
from sluice.indexing.kernels.processor import has_feature
from sluice.indexing.storage.exact_scores import norms_of
from sluice.indexing.tokens.storage.rounding import LARGEST, LEVELS, SMALLEST
from sluice.indexing.tokens.storage.segment import CELL, ZERO, code_width

LANES = 16  # query tokens in a panel
WIDE = has_feature("avx512f")  # 32 registers of 16 numbers; else 16 of 8
_WIDE_BYTES = WIDE and has_feature("avx512vnni")
BYTES = _WIDE_BYTES or has_feature("avxvnni")  # the processor multiplies bytes
PAIRED = _WIDE_BYTES or (WIDE and not BYTES)  # panels are taken two at a time
# Tokens taken together. With more, whose sums would still fit the registers, LLVM runs out of
# registers for their addresses: 12 were measured at .7 of the speed of 4.
TOKENS = 4
_NUMBER, _FLOAT = ir.IntType(32), ir.FloatType()
_FLOATS, _NUMBERS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_NUMBER, LANES)
# Numbers in a register of the byte product: a panel is one such register, or two.
_STEP = LANES if _WIDE_BYTES else LANES // 2


def _product(tokens: int, panels: int) -> Any:
    """Return an intrinsic for so many tokens and panels.

    It multiplies the rows of ``codes`` from ``first`` on with the panels from ``panel`` on.
    Where the processor multiplies bytes, ``queries`` are signed bytes, four to an int32, ``codes``
    uint8, and ``starts`` (int32, a line for each panel) what the sums begin with: less ``ZERO``
    times the sum of a query's codes. Elsewhere all are float32, and ``codes`` have no ``ZERO``.
    Line ``line`` of ``best`` is raised to the largest of the sums times the tokens' ``scales``;
    with ``keep`` these are written to ``sums`` too, from line ``at`` on. A line has ``LANES``
    numbers for each panel of the query; ``column`` is the first that is written. Nothing is
    checked.
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
        best: Any,
        line: Any,
        column: Any,
        keep: Any,
        sums: Any,
        at: Any,
    ) -> Any:
        one = types.intp
        signature = types.void(
            queries, starts, one, codes, scales, one, best, one, one, types.boolean, sums, one
        )

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            arrays = {
                at: context.make_array(signature.args[at])(context, builder, arguments[at])
                for at in (0, 1, 3, 4, 6, 10)
            }
            panel, first, line, column, keep, kept_line = (
                arguments[at] for at in (2, 5, 7, 8, 9, 11)
            )
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
            scores = [
                [
                    builder.fmul(builder.sitofp(total, _FLOATS) if BYTES else total, scale)
                    for total in totals
                ]
                for totals, scale in zip(results, spread_scales, strict=True)
            ]
            for at in range(panels):
                place = builder.add(column, index(at * LANES))
                place = builder.add(builder.mul(line, width), place)
                best = load(arrays[6].data, place, _FLOATS)
                for line_scores in scores:
                    greater = builder.fcmp_ordered(">", line_scores[at], best)
                    best = builder.select(greater, line_scores[at], best)
                _store(builder, best, arrays[6].data, place)
            with builder.if_then(builder.trunc(keep, ir.IntType(1))):
                width = builder.extract_value(arrays[10].shape, 1)
                for token, line_scores in enumerate(scores):
                    begin = builder.mul(builder.add(kept_line, index(token)), width)
                    for at, score in enumerate(line_scores):
                        place = builder.add(begin, builder.add(column, index(at * LANES)))
                        _store(builder, score, arrays[10].data, place)
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


multiply, multiply_pair = (_product(TOKENS, panels) for panels in (1, 2))
multiply_one, multiply_one_pair = (_product(1, panels) for panels in (1, 2))


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


UNIT_ROUNDOFF = 2.0**-24  # of float32
_UP = 1 + 2.0**-16


class Queries(NamedTuple):
    """Queries in panels of 16 tokens; query i has the panels from ``panels[i]`` to the next.

    The approximate score of a query and a document is at most ``lossy[i] * loss + direct[i] *
    reach`` away from the exact one (see ``query_panels``); of token j of a query, it is
    ``token_lossy`` and ``token_direct``, in units of its ``scales``.
    """

    exact: Any  # float64 [tokens, dim]
    bounds: Any  # int64 [n + 1], of the tokens
    panels: Any  # int64 [n + 1]
    cells: Any  # [panels, cells, LANES]: int32, or float32
    starts: Any  # [panels, LANES]
    scales: Any  # float32 [panels * LANES], 0 in empty lanes
    token_lossy: Any  # float32 [panels * LANES]
    token_direct: Any
    lossy: Any  # float32 [n]
    direct: Any


def query_panels(queries: TokenVectors) -> Queries:
    """Return queries as kernels read them, with bounds on the approximation.

    A query token q is multiplied as ``q' = scale * codes``, a document's token t as its own codes
    ``t'``. By Cauchy and Schwarz ``|q.t - q'.t'| <= |q| |t - t'| + |q - q'| |t'|``, and the maximum
    over tokens, being 1-Lipschitz, is off by at most the worst of them. To this come the
    roundings: of the product with the two scales, of the sum over the query's tokens, of the
    exact score to float32, and, in codes, of sums beyond 24 bits. A query with values outside of
    ``SMALLEST`` to ``LARGEST`` gets infinite bounds.
    """
    values, dim = queries.values, queries.dim
    count, wide = len(queries), code_width(dim)
    lengths = queries.lengths
    panels = np.concatenate([[0], np.cumsum(-(-lengths // LANES))]).astype(np.int64)
    lanes = int(panels[-1]) * LANES
    owners = np.repeat(np.arange(count), lengths)
    places = panels[owners] * LANES + np.arange(len(values)) - queries.bounds[owners]

    largest = np.abs(values).max(axis=1, initial=0).astype(np.float64)
    token_scales = (largest / LEVELS).astype(np.float32)
    wide_scales = token_scales.astype(np.float64)
    inverse = np.divide(LEVELS, largest, out=np.zeros_like(largest), where=largest > 0)
    whole = np.rint(values.astype(np.float64) * inverse[:, None])
    lost = norms_of_float64(values - whole * wide_scales[:, None])
    norms = norms_of(values)
    wrong = (largest > 0) & ~((largest >= SMALLEST) & (largest <= LARGEST))

    codes = np.zeros((lanes, wide), np.int8)
    codes[places, :dim] = whole.astype(np.int8)
    by_panel = codes.reshape(-1, LANES, wide)
    starts: NDArray[Any]
    if BYTES:
        cells = by_panel.reshape(-1, LANES, wide // CELL, CELL).transpose(0, 2, 1, 3)
        factors: NDArray[Any] = np.ascontiguousarray(cells).view(np.int32)[..., 0]
        starts = (by_panel.sum(axis=2, dtype=np.int32) * -ZERO).astype(np.int32)
    else:
        factors = np.ascontiguousarray(by_panel.transpose(0, 2, 1)).astype(np.float32)
        starts = np.zeros((len(by_panel), LANES), np.float32)
    roundings = (2 * dim * UNIT_ROUNDOFF if dim > 1000 else 0.0) + 16 * UNIT_ROUNDOFF
    summed = 2 * UNIT_ROUNDOFF * (lengths + 8)
    token_direct = lost + roundings * (norms + lost)
    lossy, direct = np.zeros(count), np.zeros(count)
    with np.errstate(over="ignore", invalid="ignore"):
        np.add.at(lossy, owners, norms)
        np.add.at(direct, owners, token_direct + summed[owners] * (norms + lost))
        direct[owners[wrong]] = np.inf
        query_lossy, query_direct = ((each * _UP).astype(np.float32) for each in (lossy, direct))
    units = np.divide(1, wide_scales, out=np.zeros(len(values)), where=wide_scales > 0)
    spread = np.zeros((3, lanes), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        spread[:, places] = token_scales, norms * units * _UP, token_direct * units * _UP
    return Queries(
        exact=values.astype(np.float64),
        bounds=lent(queries.bounds),
        panels=panels,
        cells=factors,
        starts=starts,
        scales=spread[0],
        token_lossy=spread[1],
        token_direct=spread[2],
        lossy=query_lossy,
        direct=query_direct,
    )


def norms_of_float64(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Euclidean norms of float64 vectors, not below the true ones."""
    norms: NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", vectors, vectors)) * (1 + 2.0**-40)
    return norms
