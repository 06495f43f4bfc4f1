"""Upper bounds of the scores in blocks of documents, and in groups of blocks."""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sluice.indexing.inverted.segments.segment import GROUP
from sluice.indexing.kernels.prefetch import LINE, prefetch

FETCHED = 512  # entries of a list that are fetched early
CHUNK = 4096  # bounds summed at a time: 16 KB stay in the nearest cache
LOOSE = {"contract", "nsz", "arcp"}  # bounds carry a margin for rounding, scores never


@njit(cache=True, nogil=True, fastmath=LOOSE)  # type: ignore[untyped-decorator]
def bound_blocks(
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    dense_rows: NDArray[np.int32],
    dense: NDArray[np.uint8],
    list_starts: NDArray[np.int64],
    list_blocks: NDArray[np.uint16],
    list_bounds: NDArray[np.uint8],
    lazy: bool,
    bounds: NDArray[np.float32],
) -> None:
    """Set each block's bound; if ``lazy``, without the terms that have dense rows.

    ``weights`` are the query's times the terms' bound scales.
    """
    rows = np.empty(len(terms), dtype=np.int64)
    row_weights = np.empty(len(terms), dtype=np.float32)
    count = 0
    bounds[:] = 0
    for j in range(len(terms)):
        row = dense_rows[terms[j]]
        if row >= 0:
            rows[count], row_weights[count] = row, weights[j]
            count += 1
        else:  # read last, so they may be on their way meanwhile
            first, last = list_starts[terms[j]], list_starts[terms[j] + 1]
            for place in range(first, min(last, first + FETCHED), LINE):
                prefetch(list_blocks, place)
            for place in range(first, min(last, first + FETCHED), 2 * LINE):
                prefetch(list_bounds, place)
    if not lazy:
        for first in range(0, len(bounds), CHUNK):
            _add_rows(rows[:count], row_weights, dense, first, bounds[first : first + CHUNK])
    for j in range(len(terms)):
        if dense_rows[terms[j]] < 0:
            listed = slice(list_starts[terms[j]], list_starts[terms[j] + 1])
            _add_list(weights[j], list_blocks[listed], list_bounds[listed], bounds)


@njit(cache=True, nogil=True, fastmath=LOOSE)  # type: ignore[untyped-decorator]
def _add_rows(
    rows: NDArray[np.int64],
    weights: NDArray[np.float32],
    dense: NDArray[np.uint8],
    first: int,
    part: NDArray[np.float32],
) -> None:
    """Add a stretch of dense rows to the bounds from ``first`` on, two rows at a time."""
    size = len(part)
    for pair in range(0, len(rows) - 1, 2):
        v, w = weights[pair], weights[pair + 1]
        a = dense[rows[pair]][first : first + size]
        b = dense[rows[pair + 1]][first : first + size]
        for i in range(size):
            part[i] += v * np.float32(a[i]) + w * np.float32(b[i])
    if len(rows) % 2:
        v = weights[len(rows) - 1]
        a = dense[rows[-1]][first : first + size]
        for i in range(size):
            part[i] += v * np.float32(a[i])


@njit(cache=True, nogil=True, fastmath=LOOSE)  # type: ignore[untyped-decorator]
def _add_list(
    weight: np.float32,
    blocks: NDArray[np.uint16],
    codes: NDArray[np.uint8],
    bounds: NDArray[np.float32],
) -> None:
    for i in range(len(blocks)):
        block = min(np.int64(blocks[i]), len(bounds) - 1)  # whatever a damaged file says
        bounds[block] += weight * np.float32(codes[i])


@njit(cache=True, nogil=True, fastmath=LOOSE)  # type: ignore[untyped-decorator]
def bound_groups(
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    dense_rows: NDArray[np.int32],
    dense_groups: NDArray[np.uint8],
    lazy: bool,
    bounds: NDArray[np.float32],
    groups: NDArray[np.float32],
) -> None:
    """Set each group's bound: the largest of its blocks', dense rows by their group maxima."""
    for group in range(len(groups)):
        most = np.float32(0)
        for bound in bounds[group * GROUP : group * GROUP + GROUP]:
            most = max(most, bound)
        groups[group] = most
    if lazy:
        for j in range(len(terms)):
            row = dense_rows[terms[j]]
            if row >= 0:
                v = weights[j]
                codes = dense_groups[row]
                for group in range(len(groups)):
                    groups[group] += v * np.float32(codes[group])


@njit(cache=True, nogil=True, fastmath=LOOSE)  # type: ignore[untyped-decorator]
def refine_group(
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    dense_rows: NDArray[np.int32],
    dense: NDArray[np.uint8],
    group: int,
    part: NDArray[np.float32],
) -> None:
    """Add the dense rows to the bounds of one group's blocks, which a lazy pass left out."""
    for j in range(len(terms)):
        row = dense_rows[terms[j]]
        if row >= 0:
            v = weights[j]
            codes = dense[row][group * GROUP : group * GROUP + GROUP]
            for i in range(GROUP):
                part[i] += v * np.float32(codes[i])


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def best_groups_first(groups: NDArray[np.float32], least: np.float32) -> NDArray[np.int32]:
    """Return the groups whose bound is at least ``least``, roughly in descending order.

    A counting sort into 1,024 classes: within a class the order is that of the documents.
    """
    classes = 1024
    most, count = np.float32(0), 0
    for group in range(len(groups)):
        if groups[group] > 0 and groups[group] >= least:
            count += 1
            most = max(most, min(groups[group], np.float32(3e38)))
    ordered = np.empty(count, dtype=np.int32)
    width = most - least
    scale = np.float32(classes - 1) / width if width > np.float32(1e-30) else np.float32(0)
    places = np.zeros(classes + 1, dtype=np.int64)
    for group in range(len(groups)):
        if groups[group] > 0 and groups[group] >= least:
            distance = max(most - groups[group], np.float32(0)) * scale
            places[1 + min(np.int64(distance), np.int64(classes - 1))] += 1
    for i in range(classes):
        places[i + 1] += places[i]
    for group in range(len(groups)):
        if groups[group] > 0 and groups[group] >= least:
            distance = max(most - groups[group], np.float32(0)) * scale
            place = min(np.int64(distance), np.int64(classes - 1))
            ordered[places[place]] = group
            places[place] += 1
    return ordered
