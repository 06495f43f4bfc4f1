"""Kernels of MaxSim: documents' scores within bounds, exact scores, and which tokens met."""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sluice.indexing.hits import LARGEST_SCORE
from sluice.indexing.kernels.ranking import STEP, whole_sum
from sluice.indexing.tokens.search.tile import (
    LANES,
    PAIRED,
    TOKENS,
    Queries,
    lowest_bit,
    multiply,
    multiply_one,
    multiply_one_pair,
    multiply_pair,
    reaching,
)
from sluice.indexing.tokens.storage.rounding import (
    add_residuals,
    copy_codes,
    read_token,
    scale_of,
    wide_of,
)
from sluice.indexing.tokens.storage.segment import RESIDUAL, ZERO, Segment

_LARGEST = float(LARGEST_SCORE)
_UP, _TINY = np.float32(1 + 2.0**-16), np.float32(1e-37)
_INFINITE = np.float32(np.inf)
DECODED = 64  # tokens decoded at a time, as far as they do not stay for exact scores


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _multiply(
    queries: Queries,
    query: int,
    codes: Any,
    scales: Any,
    lo: int,
    hi: int,
    best: Any,
    line: int,
    keep: bool,
    sums: Any,
) -> None:
    """Raise a line of ``best`` to each lane's largest score with tokens ``lo`` to ``hi``.

    With ``keep``, all of these scores are written into ``sums``, a line for each token.
    """
    first, last = queries.panels[query], queries.panels[query + 1]
    cells, starts = queries.cells, queries.starts
    panel = first
    while panel < last:
        pair = PAIRED and panel + 1 < last
        at, to = (panel - first) * LANES, lo
        while to < hi:
            if hi - lo < TOKENS:
                if pair:
                    multiply_one_pair(
                        cells, starts, panel, codes, scales, to, best, line, at, keep, sums, to - lo
                    )
                else:
                    multiply_one(
                        cells, starts, panel, codes, scales, to, best, line, at, keep, sums, to - lo
                    )
                to += 1
                continue
            to = min(to, hi - TOKENS)  # the last ones are multiplied again rather than one by one
            if pair:
                multiply_pair(
                    cells, starts, panel, codes, scales, to, best, line, at, keep, sums, to - lo
                )
            else:
                multiply(
                    cells, starts, panel, codes, scales, to, best, line, at, keep, sums, to - lo
                )
            to += TOKENS
        panel += 2 if pair else 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _fill(segment: Segment, lo: int, hi: int, zero: int, codes: Any, scales: Any) -> None:
    """Write the codes, less ``zero``, and scales of tokens ``lo`` to ``hi`` from line 0 on."""
    kind, _, _, _, source, stored, centroids, _, table, levels = segment
    for token in range(lo, hi):
        scales[token - lo] = scale_of(kind, stored, token)
    if kind >= RESIDUAL:
        add_residuals(source, lo, hi, centroids, table, levels, zero, codes)
        return
    for token in range(lo, hi):
        copy_codes(source, token, zero, codes, token - lo)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})  # type: ignore[untyped-decorator]
def _total(scales: Any, first: int, best: Any, line: int, count: int) -> Any:
    total = np.float32(0)
    for lane in range(count):
        total += scales[first + lane] * best[line, lane]
    return total


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def bound_scores(
    segment: Segment,
    places: NDArray[np.int64],
    start: int,
    count: int,
    queries: Queries,
    first_query: int,
    codes: Any,
    scales: Any,
    direct: bool,
    best: NDArray[np.float32],
    lows: NDArray[np.float32],
    highs: NDArray[np.float32],
    at: int,
) -> None:
    """Write bounds on the scores of some documents with some queries, from column ``at`` on.

    The documents are at ``places``, or from ``start`` on when that is empty; there is a line of
    ``lows`` and ``highs`` for each query from ``first_query`` on. ``direct``: ``codes`` and
    ``scales`` are the segment's own; else they are room for the longest document, float32 where
    the processor does not multiply bytes. ``best`` is room, ``[queries, lanes]``. A document or a
    query without tokens is bounded by -inf.
    """
    zero = 0 if codes.itemsize == 1 else ZERO
    for i in range(count):
        place = places[i] if len(places) else start + i
        lo, hi = segment.bounds[place], segment.bounds[place + 1]
        loss, reach = segment.losses[place], segment.reaches[place]
        best[:] = -_INFINITE
        # Decoded codes are multiplied while they are in the nearest cache.
        step = max(1, hi - lo) if direct else DECODED
        for begin in range(lo, hi, step):
            first, last = begin, min(begin + step, hi)
            if not direct:
                _fill(segment, first, last, zero, codes, scales)
                first, last = 0, last - first
            for line in range(len(lows)):
                if _margin(queries, first_query + line, loss, reach) < _INFINITE:
                    _multiply(
                        queries, first_query + line, codes, scales, first, last, best, line,
                        False, best,
                    )  # fmt: skip
        for line in range(len(lows)):
            query = first_query + line
            first_lane = queries.panels[query] * LANES
            lanes = queries.panels[query + 1] * LANES - first_lane
            if lo == hi or lanes == 0:
                lows[line, at + i] = highs[line, at + i] = -_INFINITE
                continue
            margin = _margin(queries, query, loss, reach)
            if not margin < _INFINITE:
                lows[line, at + i], highs[line, at + i] = -_INFINITE, _INFINITE
                continue
            score = _total(queries.scales, first_lane, best, line, lanes)
            lows[line, at + i], highs[line, at + i] = score - margin, score + margin


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _margin(queries: Queries, query: int, loss: float, reach: float) -> Any:
    margin = queries.lossy[query] * loss + queries.direct[query] * reach
    return np.float32(margin * _UP + _TINY)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _product(exact: Any, token: int, vectors: Any, width: int) -> Any:
    total = whole_sum(False, exact, token, vectors, 0)
    for i in range(width - width % STEP, width):
        total += exact[token, i] * np.float64(vectors[0, i])
    return total


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _lower(
    queries: Queries, begin: int, tokens: int, loss: float, reach: float, floors: Any, best: Any
) -> None:
    """Turn the largest approximate scores into what the largest exact one must reach at least.

    A query token of zeros, whose products are 0, and empty lanes need no exact products.
    """
    for lane in range(floors.shape[1]):
        if lane >= tokens or queries.scales[begin + lane] == 0:
            floors[0, lane] = _INFINITE
            best[lane] = 0.0
            continue
        slack = queries.token_lossy[begin + lane] * loss
        slack += queries.token_direct[begin + lane] * reach
        # Either may be off by the slack: the one that seems largest, and the one that is.
        floors[0, lane] -= np.float32(2) * slack * _UP + _TINY


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def score_exactly(
    segment: Segment,
    places: NDArray[np.int64],
    queries: Queries,
    query: int,
    codes: Any,
    scales: Any,
    direct: bool,
    sums: NDArray[np.float32],
    scores: NDArray[np.float32],
    at: int,
) -> None:
    """Write the MaxSim of one query with the documents at ``places``, from place ``at`` on.

    The product of two tokens is a sum in float64, in the order of ``exact_score``; a document's
    score is the sum of the query tokens' largest products, in their order, rounded to float32. Of
    a query token only those products are computed that can be its largest. ``sums`` is room for
    the longest document, ``[tokens, lanes]``; ``codes`` and ``scales`` as for ``bound_scores``.
    """
    dim = queries.exact.shape[1]
    token_first, token_last = queries.bounds[query], queries.bounds[query + 1]
    tokens = token_last - token_first
    begin = queries.panels[query] * LANES
    lanes = queries.panels[query + 1] * LANES - begin
    zero = 0 if codes.itemsize == 1 else ZERO
    vectors = np.empty((1, dim), np.float32)
    scratch = np.empty((1, wide_of(segment)), np.uint8)
    floors = np.empty((1, lanes), np.float32)
    best = np.empty(lanes, np.float64)
    kind, bounds, _, _, stored, stored_scales, centroids, values, table, levels = segment
    exact = queries.exact
    for i in range(len(places)):
        place = places[i]
        lo, hi = bounds[place], bounds[place + 1]
        if lo == hi or tokens == 0:
            scores[at + i] = -np.inf
            continue
        loss, reach = segment.losses[place], segment.reaches[place]
        best[:] = -np.inf
        margin = queries.lossy[query] * loss + queries.direct[query] * reach
        bounded = margin < _INFINITE
        if bounded:
            first, last = lo, hi
            if not direct:
                _fill(segment, lo, hi, zero, codes, scales)
                first, last = 0, hi - lo
            floors[:] = -_INFINITE
            _multiply(queries, query, codes, scales, first, last, floors, 0, True, sums)
            _lower(queries, begin, tokens, loss, reach, floors, best)
        for token in range(hi - lo):
            read = False
            for column in range(0, lanes, LANES):
                mask = reaching(sums, token, column, floors) if bounded else np.int64(2**LANES - 1)
                while mask:
                    lane = column + lowest_bit(mask)
                    mask &= mask - 1
                    if lane >= tokens:
                        break
                    if not read:
                        read_token(
                            kind,
                            stored,
                            stored_scales,
                            centroids,
                            values,
                            table,
                            levels,
                            lo + token,
                            scratch,
                            vectors,
                            0,
                        )
                        read = True
                    product = _product(exact, token_first + lane, vectors, dim)
                    best[lane] = max(best[lane], product)
        total = 0.0
        for lane in range(tokens):
            total += best[lane]
        scores[at + i] = np.float32(min(max(total, -_LARGEST), _LARGEST)) + np.float32(0)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def match_tokens(
    segment: Segment,
    place: int,
    exact: NDArray[np.float64],
    positions: NDArray[np.int64],
    products: NDArray[np.float64],
) -> None:
    """Write, for each query token, the document's token of the largest product, and that.

    Of equals it is the first; without tokens nothing is written.
    """
    dim = exact.shape[1]
    vectors = np.empty((1, dim), np.float32)
    scratch = np.empty((1, wide_of(segment)), np.uint8)
    kind, bounds, _, _, codes, scales, centroids, values, table, levels = segment
    lo = bounds[place]
    products[:] = -np.inf
    for token in range(lo, bounds[place + 1]):
        read_token(
            kind, codes, scales, centroids, values, table, levels, token, scratch, vectors, 0
        )
        for query_token in range(len(exact)):
            product = _product(exact, query_token, vectors, dim)
            if product > products[query_token]:
                products[query_token], positions[query_token] = product, token - lo
