"""Recursive graph bisection: documents that share terms move into the same half.

Dhulipala, Kabiljo, Karrer, Ottaviano, Pupyrev and Shalita, Compressing Graphs and Indexes with
Recursive Graph Bisection, KDD 2016; in each round the documents are divided at the median of their
gains instead of sorted (Mackenzie, Petri and Moffat, Faster Index Reordering with Bipartite Graph
Partitioning, SIGIR 2021), which exchanges the same pairs.

A term of ``d`` among ``n`` documents costs ``d log2(n / (d + 1))`` bits. The value of a document is
what the costs of its terms fall by if it is on the right instead of on the left.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sluice.indexing.kernels.calls import build_pool, finish
from sluice.indexing.kernels.ranking import select_largest

LEAF: Final = 16  # documents that are not divided further: a block
GROUPED: Final = 512  # larger parts are divided at multiples of it: groups of 16 blocks
ROUNDS: Final = 20  # of exchanges for each part at most
SETTLED: Final = 0.01  # share of a part's documents below whose exchange a part is left
SUBTREE: Final = 1 << 14  # documents that one thread divides to the end
CHUNK: Final = 1 << 12  # documents whose values one thread computes at a time


def bisection_order(
    starts: NDArray[np.int64], terms: NDArray[np.uint32], order: NDArray[np.uint32], width: int
) -> None:
    """Rearrange ``order``, a list of documents, in place; each has terms below ``width``.

    ``order`` should be random: in a regular one (topics taking turns) both halves are alike, and no
    exchange helps. The result does not depend on the number of threads. Beside the arguments a
    thread needs 20 bytes a term.
    """
    fall = _falls(len(order) + 1)
    degrees, gains = np.zeros((width, 2), np.int32), np.zeros((width, 2), np.float32)
    values = np.empty(len(order), np.float32)
    touched = np.empty(width, np.uint32)
    subtrees: list[tuple[int, int]] = []
    with build_pool() as pool:
        parts = [(0, len(order))]
        while parts:
            first, last = parts.pop()
            if last - first <= SUBTREE:
                subtrees.append((first, last))
                continue
            middle = _middle(first, last)
            used = _count(starts, terms, order, first, middle, last, degrees, touched)
            for _ in range(ROUNDS):
                _weigh(degrees, touched, used, middle - first, last - middle, fall, gains)
                finish(
                    pool.submit(
                        _evaluate, starts, terms, order, at, min(at + CHUNK, last), middle,
                        gains, values,
                    )
                    for at in range(first, last, CHUNK)
                )  # fmt: skip
                moved = _exchange(starts, terms, order, first, middle, last, values, degrees)
                if moved <= SETTLED * (last - first):
                    break
            _clear(degrees, touched, used)
            parts += [(first, middle), (middle, last)]
        finish(
            pool.submit(_divide, starts, terms, order, first, last, width, fall, values)
            for first, last in subtrees
        )


def _falls(most: int) -> NDArray[np.float32]:
    """Return ``d log2(d + 1) - (d - 1) log2(d)`` for d from 0, what a cost's growth falls by."""
    counts = np.arange(1, most + 1, dtype=np.float64)
    whole = np.concatenate([[0.0], counts * np.log2(counts + 1)])
    return np.diff(whole, prepend=0.0).astype(np.float32)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _middle(first: int, last: int) -> int:
    """Return where a part is divided, so that parts are whole blocks and groups of them."""
    size = last - first
    if size > 2 * GROUPED:
        return first + (size // 2 + GROUPED // 2) // GROUPED * GROUPED
    half = LEAF
    while 2 * half < size:
        half *= 2
    return first + half


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _count(
    starts: NDArray[np.int64],
    terms: NDArray[np.uint32],
    order: NDArray[np.uint32],
    first: int,
    middle: int,
    last: int,
    degrees: NDArray[np.int32],
    touched: NDArray[np.uint32],
) -> int:
    """Count each term's documents in both halves; list the terms and return their number."""
    used = 0
    for at in range(first, last):
        side = 1 if at >= middle else 0
        document = order[at]
        for i in range(starts[document], starts[document + 1]):
            term = terms[i]
            if degrees[term, 0] + degrees[term, 1] == 0:
                touched[used] = term
                used += 1
            degrees[term, side] += 1
    return used


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _clear(
    degrees: NDArray[np.int32],
    touched: NDArray[np.uint32],
    used: int,
) -> None:
    for i in range(used):
        degrees[touched[i], 0] = 0
        degrees[touched[i], 1] = 0


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _weigh(
    degrees: NDArray[np.int32],
    touched: NDArray[np.uint32],
    used: int,
    left: int,
    right: int,
    fall: NDArray[np.float32],
    gains: NDArray[np.float32],
) -> None:
    """Set each term's part of the value of its documents on the left and on the right."""
    base = np.float32(np.log2(left / right))
    for i in range(used):
        term = touched[i]
        on_left, on_right = degrees[term, 0], degrees[term, 1]
        gains[term, 0] = base + fall[on_right + 1] - fall[on_left]
        gains[term, 1] = base + fall[on_right] - fall[on_left + 1]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _evaluate(
    starts: NDArray[np.int64],
    terms: NDArray[np.uint32],
    order: NDArray[np.uint32],
    first: int,
    last: int,
    middle: int,
    gains: NDArray[np.float32],
    values: NDArray[np.float32],
) -> None:
    """Compute the values of the documents at ``[first, last)``."""
    for at in range(first, last):
        side = 1 if at >= middle else 0
        document = order[at]
        value = np.float32(0)
        for i in range(starts[document], starts[document + 1]):
            value += gains[terms[i], side]
        values[at] = value


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _exchange(
    starts: NDArray[np.int64],
    terms: NDArray[np.uint32],
    order: NDArray[np.uint32],
    first: int,
    middle: int,
    last: int,
    values: NDArray[np.float32],
    degrees: NDArray[np.int32],
) -> int:
    """Bring the smaller values to the left; return how many documents changed sides."""
    median = select_largest(values[first:last].copy(), last - middle + 1)
    lefts = 0
    rights = 0
    for at in range(first, middle):
        lefts += values[at] > median
    for at in range(middle, last):
        rights += values[at] < median
    pairs = max(lefts, rights)
    if pairs == 0:
        return 0
    left_ties = pairs - lefts
    right_ties = pairs - rights
    other = middle
    for at in range(first, middle):
        if values[at] < median or (values[at] == median and left_ties == 0):
            continue
        if values[at] == median:
            left_ties -= 1
        while values[other] > median or (values[other] == median and right_ties == 0):
            other += 1
        if values[other] == median:
            right_ties -= 1
        going, coming = order[at], order[other]
        order[at], order[other] = coming, going
        for i in range(starts[going], starts[going + 1]):
            degrees[terms[i], 0] -= 1
            degrees[terms[i], 1] += 1
        for i in range(starts[coming], starts[coming + 1]):
            degrees[terms[i], 0] += 1
            degrees[terms[i], 1] -= 1
        other += 1
    return 2 * pairs


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _divide(
    starts: NDArray[np.int64],
    terms: NDArray[np.uint32],
    order: NDArray[np.uint32],
    first: int,
    last: int,
    width: int,
    fall: NDArray[np.float32],
    values: NDArray[np.float32],
) -> None:
    """Divide a part down to blocks."""
    degrees = np.zeros((width, 2), np.int32)
    gains = np.zeros((width, 2), np.float32)
    touched = np.empty(width, np.uint32)
    stack = [(first, last)]
    while len(stack):
        first, last = stack.pop()
        if last - first <= LEAF:
            continue
        middle = _middle(first, last)
        used = _count(starts, terms, order, first, middle, last, degrees, touched)
        for _ in range(ROUNDS):
            _weigh(degrees, touched, used, middle - first, last - middle, fall, gains)
            _evaluate(starts, terms, order, first, last, middle, gains, values)
            moved = _exchange(starts, terms, order, first, middle, last, values, degrees)
            if moved <= SETTLED * (last - first):
                break
        _clear(degrees, touched, used)
        stack.append((middle, last))
        stack.append((first, middle))
