"""The faults of the reference block-max implementation, each on data where it shows.

``reference`` is that algorithm in a few lines, with its faults as switches: a test shows that the
fault changes the answer on its data, and that both engines answer as brute force does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from sluice.indexing import InvertedIndex

BLOCK = 4
Table = Any


def reference(table: Table, query: Any, k: int, faults: set[str]) -> list[int]:
    """Rows of the k best documents by whole-number block-max pruning, best first."""
    count = len(table)
    blocks = [range(first, min(first + BLOCK, count)) for first in range(0, count, BLOCK)]
    bounds = [
        sum(int(q) * int(table[block, t].max()) for t, q in query.items()) for block in blocks
    ]
    if "16 bits" in faults:
        bounds = [bound % 65_536 for bound in bounds]
    floors = [
        int(q) * sorted(table[:, t].tolist(), reverse=True)[k - 1]
        for t, q in query.items()
        if k <= count
    ]
    floor = max(floors, default=0)
    heap: list[tuple[int, int]] = []
    order = sorted(range(len(blocks)), key=lambda b: -bounds[b])
    if "last block" in faults:
        order = order[:-1]
    for place, block in enumerate(order):
        for row in blocks[block]:
            score = sum(int(q) * int(table[row, t]) for t, q in query.items())
            if "16 bits" in faults:
                score %= 65_536
            enough = score > floor if "floor" in faults else score >= floor
            if score and enough:
                heap = sorted([*heap, (-score, row)])[:k]
        least = -heap[-1][0] if len(heap) == k else floor
        following = order[place + 1] if place + 1 < len(order) else None
        compared = bounds[block] if "current bound" in faults else None
        if following is not None and compared is None:
            compared = bounds[following]
        stop = compared is not None and (
            least >= compared if "current bound" in faults else least > compared
        )
        if stop:
            break
    return [row for _, row in heap]


def both_engines(table: Table, query: dict[int, int], k: int, fidelity: str) -> list[list[int]]:
    index = InvertedIndex(fidelity=fidelity, block_size=BLOCK)
    index.add(sparse.csr_array(table.astype(np.float32)))
    line = np.zeros((1, table.shape[1]), dtype=np.float32)
    line[0, list(query)] = list(query.values())
    found = []
    for engine in ("blocks", "terms"):
        hits = index.search(sparse.csr_array(line), k, params={"engine": engine})
        found.append([row for row in hits.rows[0].tolist() if row >= 0])
    return found


def ties() -> tuple[Table, dict[int, int], int]:
    """Every score equals the estimated threshold."""
    return np.full((40, 1), 7), {0: 3}, 10


def last() -> tuple[Table, dict[int, int], int]:
    """The block of the lowest bound holds the k-th hit."""
    table = np.zeros((12, 2), dtype=int)
    table[[0, 4], 0] = 9
    table[11, 1] = 1
    return table, {0: 2, 1: 1}, 3


def wide() -> tuple[Table, dict[int, int], int]:
    """Sums beyond 16 bits: the best document's wraps below the others'."""
    table = np.zeros((12, 40), dtype=int)
    table[5] = 255
    table[8, :8] = 255
    return table, dict.fromkeys(range(40), 32), 2


def crossing() -> tuple[Table, dict[int, int], int]:
    """The first block reaches its own bound with one document; the next ties with a lower row."""
    table = np.zeros((8, 2), dtype=int)
    table[4, 0] = table[5, 0] = 8
    table[0, 1] = 8
    return table, {0: 1, 1: 1}, 1


@pytest.mark.parametrize("fidelity", ["exact", "u8"])
@pytest.mark.parametrize(
    ("fault", "data"),
    [("floor", ties), ("last block", last), ("16 bits", wide), ("current bound", crossing)],
)
def test_fault_shows_and_is_not_ours(fault: str, data: Any, fidelity: str) -> None:
    table, query, k = data()
    if fault == "current bound":
        # Visited in the order of the documents reversed, as an unstable sort may have it.
        reversed_table = table[::-1]
        rows = [7 - row for row in reference(reversed_table, query, k, {fault})]
        assert rows != reference(table, query, k, set())
    else:
        assert reference(table, query, k, {fault}) != reference(table, query, k, set())
    for found in both_engines(table, query, k, fidelity):
        assert found == reference(table, query, k, set())


@pytest.mark.parametrize("engine", ["auto", "blocks", "terms"])
def test_queries_that_no_block_can_answer(engine: str) -> None:
    index = InvertedIndex(n_terms=6)
    index.add(sparse.csr_array(np.eye(3, 6, dtype=np.float32)))
    queries = sparse.csr_array(np.array([[0] * 6, [0, 0, 0, 0, 5, 5], [0, 1, 0, 0, 0, 9]], float))
    hits = index.search(queries, 3, params={"engine": engine})
    assert hits.rows.tolist() == [[-1] * 3, [-1] * 3, [1, -1, -1]]
    assert InvertedIndex().search(queries, 3, params={"engine": engine}).rows.max() == -1
