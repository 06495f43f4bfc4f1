"""Exact search in a block of documents: products tile by tile, filtered while in the cache."""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sluice.indexing.flat.tile import (
    ANY_ORDER,
    DOCUMENTS,
    LANES,
    multiply,
    reaching,
    round_to_bfloat16,
    whole_to_bfloat16,
    widen,
)
from sluice.indexing.kernels.ranking import (
    COSINE,
    DISTANCE,
    exact_score,
    offer,
    signed_key,
    signed_score,
)

STRIP = 10 * DOCUMENTS  # documents prepared at a time: they stay in the nearest caches


class Block(NamedTuple):
    """Documents of one chunk, as the kernel reads them.

    They are at ``places``, or from ``start`` on when that is empty, and the document at place
    ``p`` has the row ``rows[p]``, or ``first_row + p`` when that is empty. ``source`` is what is
    multiplied: ``vectors`` themselves, or codes (bfloat16 as uint16, int8 with ``scales``) that
    lost ``losses``; both may be empty. ``normalised``: the products are of unit vectors.
    """

    vectors: Any
    norms: Any
    source: Any
    losses: Any
    scales: Any
    normalised: bool
    first_row: int
    rows: Any
    start: int
    documents: int
    places: Any


class Batch(NamedTuple):
    """Queries, as the kernel reads them, of which the ``members`` take part.

    ``direct``, ``lossy`` and ``constant`` bound the errors (see ``margins``).
    """

    vectors: Any  # float64 [queries, width]
    norms: Any
    members: Any
    factors: Any  # float32 [queries, width]
    direct: Any
    lossy: Any
    constant: Any


class Best(NamedTuple):
    """The best documents so far, for all queries.

    ``floors`` are shared by threads: each is a score that ``k`` documents are known to reach, and
    an old value does no harm. ``exactly`` counts the documents that had to be scored exactly.
    """

    heaps: Any
    sizes: Any
    floors: Any
    exactly: Any


class Strip(NamedTuple):
    """Of some documents: how a product becomes a score, and its error's bounds."""

    scale: Any
    offset: Any
    reach: Any
    losses: Any  # times the reach


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def search_block(
    kind: int, block: Block, batch: Batch, panels: Any, best: Best, room: Any, cells: Any
) -> None:
    """Offer the documents of a block to the heaps of the members.

    ``panels`` ``[panels, cells, LANES]`` hold the factors of the members, as float32 or as pairs of
    bfloat16 numbers; without panels each document is multiplied with each of the factors by itself.
    ``room`` is scratch for ``STRIP`` documents (float32, or uint16 for bfloat16) of an even width,
    zeros at first, and ``cells`` the same memory as the product reads it. A document is left out
    only when its score cannot be among the ``k`` best.
    """
    sums = np.zeros((DOCUMENTS, LANES), dtype=np.float32)
    bounds = np.empty((4, LANES), dtype=np.float32)
    wide = np.empty((1, block.vectors.shape[1]), dtype=np.float32)
    places = np.empty(STRIP, dtype=np.int64)
    strip = Strip(
        np.ones(STRIP, dtype=np.float32),
        np.zeros(STRIP, dtype=np.float32),
        np.ones(STRIP, dtype=np.float32),
        np.zeros(STRIP, dtype=np.float32),
    )
    for base in range(0, block.documents, STRIP):
        many = min(STRIP, block.documents - base)
        for i in range(many):
            places[i] = block.places[base + i] if len(block.places) else block.start + base + i
        if len(panels):
            _fill(block, places, many, room, strip.losses)
        _describe(
            kind, block.scales, block.norms, block.losses, block.normalised, places, many, strip
        )
        for first in range(0, many, DOCUMENTS):
            last = min(first + DOCUMENTS, many)
            for panel in range(max(1, len(panels))):
                if len(panels):
                    multiply(panels, panel, cells, first, sums)
                else:
                    _multiply_each(block.source, batch, places, first, last, wide, sums)
                _offer_tile(
                    kind,
                    block.vectors,
                    block.norms,
                    block.rows,
                    block.first_row,
                    batch,
                    best,
                    places,
                    first,
                    last,
                    panel,
                    sums,
                    strip,
                    bounds,
                )


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _fill(block: Block, places: Any, many: int, room: Any, losses: Any) -> None:
    """Write the documents in the precision of the product, and what they lost."""
    source, known, norms = block.source, block.losses, block.norms
    width, normalised = source.shape[1], block.normalised
    for at in range(many):
        place = places[at]
        losses[at] = known[place] if len(known) else np.float32(0)
        if source.itemsize == room.itemsize:
            for i in range(width):
                room[at, i] = source[place, i]
        elif source.itemsize == 4:
            losses[at] = round_to_bfloat16(source, place, norms[place], normalised, room, at)
        elif room.itemsize == 4:
            widen(source, place, room, at)
        else:
            whole_to_bfloat16(source, place, room, at)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _describe(
    kind: int,
    scales: Any,
    norms: Any,
    known: Any,
    normalised: bool,
    places: Any,
    many: int,
    strip: Strip,
) -> None:
    """Write how the products of some documents become scores; ``known`` are their losses."""
    scale, offset, reach, losses = strip.scale, strip.offset, strip.reach, strip.losses
    for i in range(many):
        place = places[i]
        norm = norms[place]
        if len(scales):
            scale[i] = scales[place]
        elif kind == COSINE and not normalised:
            scale[i] = np.float32(1 / norm) if norm > 0 else np.float32(1)
        if kind != COSINE:
            reach[i] = np.float32(norm * (1 + 2.0**-20) + 1e-37)
        if kind == DISTANCE:
            offset[i] = np.float32(-0.5 * norm * norm)
        if len(known):
            losses[i] = known[place]
        losses[i] *= reach[i]


@njit(cache=True, nogil=True, fastmath=ANY_ORDER)  # type: ignore[untyped-decorator]
def _dot(codes: Any, place: int, factors: NDArray[np.float32], query: int) -> Any:
    total = np.float32(0)
    for i in range(factors.shape[1]):
        total += np.float32(codes[place, i]) * factors[query, i]
    return total


@njit(cache=True, nogil=True, fastmath=ANY_ORDER)  # type: ignore[untyped-decorator]
def _dot_wide(wide: NDArray[np.float32], factors: NDArray[np.float32], query: int) -> Any:
    total = np.float32(0)
    for i in range(factors.shape[1]):
        total += wide[0, i] * factors[query, i]
    return total


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _multiply_each(
    source: Any, batch: Batch, places: Any, first: int, last: int, wide: Any, sums: Any
) -> None:
    """Write the products of some documents with each member, no more than a panel of them."""
    factors, members = batch.factors, batch.members
    widened = source.itemsize == 2 or (source.itemsize == 1 and len(members) > 1)
    for i in range(first, last):
        if widened:
            widen(source, places[i], wide, 0)
        for lane in range(len(members)):
            if widened:
                sums[i - first, lane] = _dot_wide(wide, factors, members[lane])
            else:
                sums[i - first, lane] = _dot(source, places[i], factors, members[lane])


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _row(rows: NDArray[np.int64], first_row: int, place: int) -> Any:
    return rows[place] if len(rows) else first_row + place


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _offer(
    kind: int,
    queries: Any,
    query: int,
    query_norm: float,
    vectors: Any,
    place: int,
    norm: float,
    row: int,
    heaps: Any,
    sizes: Any,
    floors: Any,
) -> Any:
    """Score one document exactly, and return the query's floor."""
    score = exact_score(kind, queries, query, vectors, place, query_norm, norm)
    size = offer(heaps[query], sizes[query], signed_key(score, row))
    sizes[query] = size
    if size == heaps.shape[1]:
        floors[query] = max(floors[query], floor_of(kind, heaps[query, 0], query_norm))
    return floors[query]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _offer_tile(
    kind: int,
    vectors: Any,
    norms: Any,
    rows: Any,
    first_row: int,
    batch: Batch,
    best: Best,
    places: NDArray[np.int64],
    first: int,
    last: int,
    panel: int,
    sums: NDArray[np.float32],
    strip: Strip,
    bounds: NDArray[np.float32],
) -> None:
    """Score exactly what may be among the best of a panel's queries."""
    queries, query_norms, members = batch.vectors, batch.norms, batch.members
    heaps, sizes, all_floors, exactly = best.heaps, best.sizes, best.floors, best.exactly
    all_direct, all_lossy, all_constant = batch.direct, batch.lossy, batch.constant
    scales, offsets, reaches, losses = strip.scale, strip.offset, strip.reach, strip.losses
    direct, lossy, constant, floors = bounds[0], bounds[1], bounds[2], bounds[3]
    lanes: Any = min(LANES, len(members) - panel * LANES)
    for lane in range(LANES):
        query = members[panel * LANES + min(lane, lanes - 1)]
        direct[lane], lossy[lane] = all_direct[query], all_lossy[query]
        constant[lane] = all_constant[query]
        floors[lane] = all_floors[query] if lane < lanes else np.float32(np.inf)
    for i in range(first, last):
        scale, offset, reach, loss = scales[i], offsets[i], reaches[i], losses[i]
        passing = reaching(sums, i - first, bounds, scale, offset, reach, loss)
        if passing == 0:
            continue
        place = places[i]
        for lane in range(lanes):
            if not (passing >> lane) & 1:
                continue
            query = members[panel * LANES + lane]
            exactly[query] += 1
            floors[lane] = _offer(
                kind,
                queries,
                query,
                query_norms[query],
                vectors,
                place,
                norms[place],
                _row(rows, first_row, place),
                heaps,
                sizes,
                all_floors,
            )


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def floor_of(kind: int, key: int, norm: float) -> Any:
    """Return the approximate score under which a document without error is worse than ``key``."""
    score = signed_score(key)
    if kind == DISTANCE:  # -|q - d|^2 = 2 (q.d - |d|^2 / 2) - |q|^2, and the filter sees the inside
        inside = (np.float64(score) + norm * norm) / 2
        return np.float32(inside - abs(inside) * 2.0**-22)
    return score


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def merge(heaps: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
    """Offer the hits of several threads, ``[threads, queries, k]``, to the first one's heaps."""
    for thread in range(1, len(heaps)):
        for query in range(heaps.shape[1]):
            for at in range(sizes[thread, query]):
                key = heaps[thread, query, at]
                sizes[0, query] = offer(heaps[0, query], sizes[0, query], key)
