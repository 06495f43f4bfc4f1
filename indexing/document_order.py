"""Orders in which a segment keeps its documents, so that blocks hold documents that share terms."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from indexing.bisection import bisection_order
from indexing.pruning import heaviest
from indexing.spool import Documents, Spool

ORDERS: Final = ("input", "cluster", "bisection")
HEAVIEST: Final = 64  # terms of a document that decide where it stands
COMMON: Final = 0.1  # of the documents: a term in more of them is ignored
FEW: Final = 16  # documents of a term that is never too common, however few there are
STRETCH: Final = 1 << 14  # documents read at a time


def document_order(spool: Spool, terms: int, method: str, *, seed: int = 13) -> NDArray[np.uint32]:
    """Return the spool's rows in the order in which a segment shall keep them."""
    order = np.arange(len(spool), dtype=np.uint32)
    if method == "input":
        return order
    starts, columns, impacts = _deciding(spool, terms)
    empty = np.diff(starts) == 0
    order = np.concatenate([order[~empty], order[empty]])
    placed = order[: len(order) - int(empty.sum())]
    bisection_order(starts, columns, placed, terms)
    return order


def _deciding(spool: Spool, terms: int) -> Documents:
    """Return of all documents the heaviest terms that are in several documents, but not in many."""
    documents = len(spool)
    frequencies = np.zeros(terms, dtype=np.int64)
    for part in _parts(spool):
        frequencies += np.bincount(part[1], minlength=terms)
    most = max(COMMON * documents, FEW)
    deciding = (frequencies > 1) & (frequencies <= most)
    counts, columns, impacts = [np.zeros(1, np.int64)], [], []
    for starts, present, weights in _parts(spool):
        chosen = deciding[present]
        before = np.concatenate([[0], np.cumsum(chosen)])
        kept = heaviest((before[starts], present[chosen], weights[chosen]), HEAVIEST)
        counts.append(np.diff(kept[0]))
        columns.append(kept[1])
        impacts.append(kept[2])
    return (
        np.cumsum(np.concatenate(counts)),
        np.concatenate([np.empty(0, np.uint32), *columns]),
        np.concatenate([np.empty(0, np.float32), *impacts]),
    )


def _parts(spool: Spool):
    for first in range(0, len(spool), STRETCH):
        yield spool.documents(first, min(first + STRETCH, len(spool)))
