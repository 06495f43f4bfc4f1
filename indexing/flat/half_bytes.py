"""Vectors in 4 bits and 4 more, scanned before the vectors for few queries; no hit is missed."""

# mypy: disable-error-code="arg-type, assignment, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from sluice.encoders.foundation.measured import measured
from sluice.indexing.checks import Dense
from sluice.indexing.flat.kernel import floor_of, merge
from sluice.indexing.flat.margins import SMALLEST_NORM, Margins, margins
from sluice.indexing.flat.search import FlatSearch
from sluice.indexing.flat.tile import round_all_to_int8
from sluice.indexing.hits import LARGEST_SCORE, Hits, Mask
from sluice.indexing.kernels import ranking
from sluice.indexing.kernels.calls import in_parallel, lent, thread_count
from sluice.indexing.kernels.processor import has_feature
from sluice.indexing.storage.exact_scores import METRICS, Metric, Norms, norms_of
from sluice.indexing.storage.rows import DenseRows

CELL = 64  # bytes of a line of codes are a multiple of this
NARROWEST = 96  # dimensions: with fewer, codes take more than a third of the vectors
WIDEST = 1 << 15  # dimensions whose sums 32 bits hold
STRIP = 64  # rows that share a peak
PART = 1 << 16  # rows searched together, by one thread
ROWS_PER_TASK = 1_024  # of a part that is coded
IN_VAIN = 8  # scans without gain, less those with it: then vectors alone are scanned
# Documents scored exactly, a number and a share of all: from here scanning vectors is cheaper.
MOST_EXACT, MOST_EXACT_SHARE = 512, 1 / 8
LEAST_ALLOWED = 1 / 4  # of the rows: all are scanned
TIMED = 4_096  # vectors
_ALL: Mask = np.empty(0, np.bool_)
_LARGEST = float(LARGEST_SCORE)

_WIDE = has_feature("avx512f") and has_feature("avx512vnni")
MULTIPLIES = _WIDE or has_feature("avx2")  # bytes; without it no codes are made
_STEP = CELL if _WIDE else CELL // 2
_BYTES, _PAIRS, _FOURS = (
    ir.VectorType(ir.IntType(bits), _STEP * 8 // bits) for bits in (8, 16, 32)
)


@intrinsic  # type: ignore[untyped-decorator]
def _sum(typing_context: Any, codes: Any, line: Any, query: Any) -> Any:
    """Return the sum of products of a line of codes and a query.

    ``codes`` are uint8 ``[n, c]``, two of 4 bits in each byte: the lower halves belong to the first
    ``c`` of the query's int8 ``[2 c]``, the upper ones to the others. Nothing is checked.
    """
    signature = types.int32(codes, types.intp, query)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lines, factors = (
            context.make_array(signature.args[place])(context, builder, arguments[place])
            for place in (0, 2)
        )
        index = arguments[1].type
        width = builder.extract_value(lines.shape, 1)
        start = builder.gep(lines.data, [builder.mul(arguments[1], width)])
        upper_factors = builder.gep(factors.data, [width])
        before = builder.block
        loop, after = builder.append_basic_block("cell"), builder.append_basic_block("done")
        builder.branch(loop)
        builder.position_at_end(loop)
        at, total = builder.phi(index), builder.phi(_FOURS)

        def load(data: Any) -> Any:
            pointer = builder.bitcast(builder.gep(data, [at]), _BYTES.as_pointer())
            return builder.load(pointer, align=1)

        def half(cells: Any) -> Any:
            return builder.and_(builder.bitcast(cells, _BYTES), ir.Constant(_BYTES, [15] * _STEP))

        cells = builder.bitcast(load(start), _FOURS)
        shifted = builder.lshr(cells, ir.Constant(_FOURS, [4] * (_STEP // 4)))
        added = _add_products(builder, total, half(cells), load(factors.data))
        added = _add_products(builder, added, half(shifted), load(upper_factors))
        following = builder.add(at, index(_STEP))
        at.add_incoming(index(0), before)
        at.add_incoming(following, builder.block)
        total.add_incoming(ir.Constant(_FOURS, [0] * (_STEP // 4)), before)
        total.add_incoming(added, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, width), loop, after)
        builder.position_at_end(after)
        return _call(builder, f"llvm.vector.reduce.add.v{_STEP // 4}i32", ir.IntType(32), added)

    return signature, generate


def _add_products(builder: Any, total: Any, codes: Any, factors: Any) -> Any:
    """Return the sums of fours with the products of codes, below 16, and signed bytes."""
    if _WIDE:
        fours = (builder.bitcast(each, _FOURS) for each in (codes, factors))
        return _call(builder, "llvm.x86.avx512.vpdpbusd.512", _FOURS, total, *fours)
    pairs = _call(builder, "llvm.x86.avx2.pmadd.ub.sw", _PAIRS, codes, factors)
    ones = ir.Constant(_PAIRS, [1] * (_STEP // 2))
    return builder.add(total, _call(builder, "llvm.x86.avx2.pmadd.wd", _FOURS, pairs, ones))


def _call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


class Part(NamedTuple):
    """Some documents, and of each what makes a sum of its codes a score with a bound."""

    vectors: Any
    norms: Any
    numbers: Any  # their rows
    codes: Any  # uint8 [2, n, cells]
    scales: Any
    offsets: Any
    reach: Any
    losses: Any  # [2, n], times the reach


class Asked(NamedTuple):
    """Queries as they are, and as the scan reads them."""

    exact: Any  # float64
    norms: Any
    codes: Any  # int8 [n, 2 cells]
    scales: Any  # of half a unit
    totals: Any  # of the codes, int32
    margins: Margins


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _split(part: Part, unit: bool, first: int, last: int) -> None:
    """Write the codes, scales and losses of the vectors ``first`` to ``last``.

    An 8-bit code ``c`` is ``16 a + b - 128``; the first plane has ``a``, and stands for the middle
    of its sixteen numbers, the second ``b``. A vector without a bound is coded as nothing.
    """
    width, cells = part.vectors.shape[1], part.codes.shape[2]
    codes, losses = np.zeros((STRIP, 2 * cells), np.int8), part.losses[1]
    for start in range(first, last, STRIP):
        stop = min(start + STRIP, last)
        vectors, norms = part.vectors[start:stop], part.norms[start:stop]
        scales, lost = part.scales[start:stop], losses[start:stop]
        round_all_to_int8(vectors, norms, unit, 0, stop - start, codes, scales, lost)
        for at in range(start, stop):
            code, total = codes[at - start], np.int32(-225 * (2 * cells - width))
            for i in range(cells):
                low, high = np.int32(code[i]) + 128, np.int32(code[cells + i]) + 128
                part.codes[0, at, i] = np.uint8((low >> 4) | (high & 0xF0))
                part.codes[1, at, i] = np.uint8((low & 15) | ((high & 15) << 4))
                total += (2 * (low & 15) - 15) ** 2 + (2 * (high & 15) - 15) ** 2
            if losses[at] == np.inf:  # its scale is 0
                losses[at] = np.float32(1.0001)
            shrink = 0.5 if unit else 0.5 / max(part.norms[at], SMALLEST_NORM)
            rest = part.scales[at] * np.sqrt(np.float64(total)) * shrink * (1 + 2.0**-20)
            part.losses[0, at] = np.float32(losses[at] + rest)
            part.losses[0, at] *= part.reach[at]
            losses[at] *= part.reach[at]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _asked(kind: int, queries: Any, norms: Any, longest: float) -> Asked:
    """Return queries in codes, with bounds on the errors of their scores."""
    count, width = queries.shape
    cells = (width + 2 * CELL - 1) // (2 * CELL) * CELL
    codes, totals = np.zeros((count, 2 * cells), np.int8), np.zeros(count, np.int32)
    scales, losses = np.empty(count, np.float32), np.empty(count, np.float32)
    unit = kind == ranking.COSINE
    round_all_to_int8(queries, norms, unit, 0, count, codes, scales, losses)
    lost = np.empty(count)
    for query in range(count):
        for i in range(width):
            totals[query] += codes[query, i]
        scales[query] *= np.float32(0.5)
        lost[query] = losses[query] * (1.0 if unit else norms[query])
    bounds = margins(kind, width, norms, lost, 1.0, longest)
    return Asked(queries.astype(np.float64), norms, codes, scales, totals, bounds)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _scan(part: Part, asked: Asked, query: int, scores: Any, peaks: Any) -> None:
    """Write scores by the coarse codes, and what those of each strip are at most."""
    coarse, sums, factors = part.codes[0], np.empty(STRIP, np.int32), asked.codes[query]
    for strip in range(len(peaks)):
        start, stop = strip * STRIP, min((strip + 1) * STRIP, len(scores))
        for row in range(start, stop):
            sums[row - start] = _sum(coarse, row, factors)
        peaks[strip] = _score(part, asked, query, start, stop, sums, scores)


@njit(cache=True, nogil=True, fastmath={"nnan", "nsz"})  # type: ignore[untyped-decorator]
def _score(
    part: Part, asked: Asked, query: int, start: int, stop: int, sums: Any, scores: Any
) -> Any:
    """Turn sums into scores, and return what they are at most. Nothing here is NaN."""
    scales, offsets, reach, losses = part.scales, part.offsets, part.reach, part.losses
    bounds, scale, zero = asked.margins, asked.scales[query], 241 * asked.totals[query]
    direct, lossy, constant = bounds.direct[query], bounds.lossy[query], bounds.constant[query]
    peak = np.float32(-np.inf)
    for row in range(start, stop):
        total = np.float32(np.int32(32 * sums[row - start] - zero))
        scores[row] = np.float32(total * scales[row] * scale + offsets[row])
        error = direct * reach[row] + lossy * losses[0, row] + constant
        peak = max(peak, scores[row] + error)
    return peak


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _promising(scores: Any, peaks: Any, k: int) -> Any:
    """Return the ``k`` rows whose scores can be the highest, ascending; -inf never counts."""
    heap, size, worst = np.empty(k, np.int64), 0, np.float32(-np.inf)
    for strip in range(len(peaks)):
        if not peaks[strip] > worst:
            continue
        for row in range(strip * STRIP, min((strip + 1) * STRIP, len(scores))):
            if scores[row] > worst:
                size = ranking.offer(heap, size, ranking.signed_key(scores[row], row))
                if size == k:
                    worst = ranking.signed_score(heap[0])
    rows = np.empty(size, np.int64)
    for i in range(size):
        rows[i] = ranking.row_of(heap[i])
    return np.sort(rows)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _error(part: Part, bounds: Margins, query: int, plane: int, row: int) -> Any:
    share = bounds.direct[query] * part.reach[row] + bounds.lossy[query] * part.losses[plane, row]
    return share + bounds.constant[query]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _reaching(
    part: Part, asked: Asked, query: int, scores: Any, peaks: Any, floor: float, rows: Any
) -> int:
    """Write the rows that may reach a floor by both planes, and return how many there are.

    Those beyond the length of ``rows`` are counted as one.
    """
    fine, factors, count = part.codes[1], asked.codes[query], 0
    scale, zero = asked.scales[query], 15 * asked.totals[query]
    for strip in range(len(peaks)):
        if peaks[strip] < floor:
            continue
        for row in range(strip * STRIP, min((strip + 1) * STRIP, len(scores))):
            if scores[row] + _error(part, asked.margins, query, 0, row) < floor:
                continue
            total = np.float32(2 * _sum(fine, row, factors) - zero)
            score = scores[row] + total * part.scales[row] * scale
            if score + _error(part, asked.margins, query, 1, row) < floor:
                continue
            if count == len(rows):
                return count + 1
            rows[count] = row
            count += 1
    return count


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _offer(kind: int, part: Part, asked: Asked, query: int, rows: Any, heap: Any, size: int) -> int:
    """Offer the exact scores of some rows of a part to a heap; return its size."""
    exact, norm, vectors = asked.exact, asked.norms[query], part.vectors
    for row in rows:
        score = ranking.exact_score(kind, exact, query, vectors, row, norm, part.norms[row])
        size = ranking.offer(heap, size, ranking.signed_key(score, part.numbers[row]))
    return size


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _search(
    kind: int,
    part: Part,
    asked: Asked,
    mask: Any,
    scores: Any,
    rows: Any,
    heaps: Any,
    sizes: Any,
) -> bool:
    """Offer a part to the heaps; return False if more than ``rows`` holds have to be scored.

    ``mask`` is of the allowed rows, or empty; ``scores`` and ``rows`` are room for the part's.
    """
    scores = scores[: len(part.scales)]
    peaks = np.empty((len(scores) + STRIP - 1) // STRIP, np.float32)
    for query in range(len(heaps)):
        heap, norm = heaps[query], asked.norms[query]
        _scan(part, asked, query, scores, peaks)
        for row in range(len(mask)):
            if not mask[row]:
                scores[row] = -np.inf
        best = _promising(scores, peaks, len(heap))
        size = _offer(kind, part, asked, query, best, heap, sizes[query])
        if size == len(heap):  # else all are offered
            for row in best:
                scores[row] = -np.inf
            found = _reaching(
                part, asked, query, scores, peaks, floor_of(kind, heap[0], norm), rows
            )
            if found > len(rows):
                return False
            size = _offer(kind, part, asked, query, rows[:found], heap, size)
        sizes[query] = size
    return True


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _search_alone(
    kind: int, part: Part, queries: Any, norms: Any, longest: float, most: int, hit_rows: Any,
    hit_scores: Any,
) -> bool:  # fmt: skip
    """Write the hits of queries in the one part there is; return False where codes do not do."""
    asked = _asked(kind, queries, norms, longest)
    for constant in asked.margins.constant:
        if not constant < _LARGEST:
            return False
    scores, rows = np.empty(len(part.scales), np.float32), np.empty(most, np.int64)
    heaps, sizes = np.empty(hit_rows.shape, np.int64), np.zeros(len(queries), np.int64)
    if not _search(kind, part, asked, np.empty(0, np.bool_), scores, rows, heaps, sizes):
        return False
    ranking.read_heaps(heaps, sizes, hit_rows, hit_scores)
    return True


class HalfBytes:
    """A quarter of the vectors' size, of which a search reads half, and gives the exact hits.

    A document's score is at most that of its codes and the margin of what they lost (see
    ``margins``). The ``k`` documents that are best by codes are scored exactly; the worst of them
    is a floor, and what may reach it, by the coarse codes and then by both, is scored too.
    """

    def __init__(
        self, rows: DenseRows, metric: Metric, places: Sequence[NDArray[np.int64]] = ()
    ) -> None:
        self._kind, self._in_vain = METRICS.index(metric), 0
        self._longest = 1.0 if self._kind == ranking.COSINE else rows.norm_range()[1]
        self._parts: list[Part] = []
        start = 0
        for chunk, (vectors, norms) in enumerate(rows.chunks()):
            numbers = places[chunk] if places else np.arange(start, start + len(norms))
            start += len(norms)
            for first in range(0, len(norms), PART):
                three = (lent(each)[first : first + PART] for each in (vectors, norms, numbers))
                self._parts.append(self._coded(*three))
        self._ends = np.cumsum([0, *(len(part.scales) for part in self._parts)])

    def _coded(self, vectors: Dense, norms: Norms, numbers: NDArray[np.int64]) -> Part:
        count, width = vectors.shape
        unit, cells = self._kind == ranking.COSINE, -(-width // (2 * CELL)) * CELL
        reach, offsets = np.ones(count, np.float32), np.zeros(count, np.float32)
        with np.errstate(over="ignore"):  # queries of such rows have no bounds
            if not unit:
                reach = (norms * (1 + 2.0**-20) + 1e-37).astype(np.float32)
            if self._kind == ranking.DISTANCE:
                offsets = (-0.5 * norms * norms).astype(np.float32)
        codes, losses = np.empty((2, count, cells), np.uint8), np.empty((2, count), np.float32)
        scales = np.empty(count, np.float32)
        part = Part(vectors, norms, numbers, codes, scales, offsets, reach, losses)
        in_parallel(partial(_split, part, unit), count, ROWS_PER_TASK)
        return part

    def search(self, queries: Dense, k: int, allowed: Mask | None) -> Hits | None:
        """Return the best allowed documents; None where the codes rule out too little."""
        ends, count = self._ends, int(self._ends[-1])
        largest = min(count, PART)
        most = min(largest, MOST_EXACT + int(largest * MOST_EXACT_SHARE))
        few = allowed is not None and np.count_nonzero(allowed) < count * LEAST_ALLOWED
        if few or 2 * k > most or self._in_vain > IN_VAIN:
            return None
        hits = Hits.missing(len(queries), k)
        if allowed is None and len(self._parts) == 1:  # one call: a small index takes as long
            given = self._parts[0], lent(queries), norms_of(queries), self._longest
            if _search_alone(self._kind, *given, most, *hits):
                self._in_vain = max(0, self._in_vain - 1)
                return hits
            self._in_vain += 1
            return None
        asked = _asked(self._kind, lent(queries), norms_of(queries), self._longest)
        if not asked.margins.constant.max() < LARGEST_SCORE:
            return None
        heaps = np.empty((len(self._parts), len(queries), k), np.int64)
        sizes = np.zeros(heaps.shape[:2], np.int64)

        def task(first: int, last: int) -> None:
            room = np.empty(largest, np.float32), np.empty(most, np.int64)
            for place in range(first, last):
                mask = _ALL if allowed is None else lent(allowed[ends[place] : ends[place + 1]])
                part = self._parts[place]
                if not _search(self._kind, part, asked, mask, *room, heaps[first], sizes[first]):
                    sizes[first] = -1
                    return

        in_parallel(task, len(self._parts))
        if sizes.min() < 0:
            self._in_vain += 1
            return None
        self._in_vain = max(0, self._in_vain - 1)
        merge(heaps, sizes)
        ranking.read_heaps(heaps[0], sizes[0], hits.rows, hits.scores)
        return hits


@cache
def pays(width: int) -> bool:
    """Return whether this machine answers one query sooner by codes than by vectors, timed once."""
    if not NARROWEST <= width <= WIDEST or not MULTIPLIES:
        return False
    rows, numbers = DenseRows(), np.random.default_rng(1)
    vectors = numbers.standard_normal((TIMED, width), np.float32) / (1 + np.arange(width) / 20)
    rows.append(vectors.astype(np.float32))
    codes, query = HalfBytes(rows, "ip"), rows.chunks()[0][0][:1]
    ways: dict[str, Callable[[], object]] = {
        "vectors": lambda: FlatSearch(rows, None, "ip", query, 10).hits(None),
        "codes": lambda: codes.search(query, 10, None),
    }
    task = f"one query over vectors of {width}; numba {numba.__version__}; {thread_count()} threads"
    return measured(task, ways).fastest == "codes"
