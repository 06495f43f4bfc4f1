"""Orders the documents of a segment so that blocks hold documents that share terms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.indexing.inverted.spooling.spool import Documents, Spool

ORDERS: Final = ("input", "cluster", "bisection")
HEAVIEST: Final = 64  # terms of a document that decide its place
COMMON: Final = 0.1  # of the documents: terms in more of them say little and are ignored
FEW: Final = 16  # documents of a term that is never too common, however small the corpus
STRETCH: Final = 1 << 14  # documents read at a time


def document_order(spool: Spool, terms: int, method: str, *, seed: int = 13) -> NDArray[np.uint32]:
    """Return the spool's rows in the order in which a segment shall keep them.

    ``"input"`` is the order of adding; ``"cluster"`` is quick; ``"bisection"`` makes the blocks'
    terms fewest. ``seed`` decides the sample of one and the beginning of the other. Documents
    without a term that decides, empty ones among them, come last. Needs about 16 bytes for each of
    at most ``HEAVIEST`` terms a document. ``ConfigError`` for another method.
    """
    if method not in ORDERS:
        raise ConfigError(
            f"order: {method!r}, expected one of {', '.join(ORDERS)}{suggest(method, ORDERS)}"
        )
    rows = np.arange(len(spool), dtype=np.uint32)
    if method == "input":
        return rows
    from sluice.indexing.inverted.spooling.bisection import bisection_order
    from sluice.indexing.inverted.spooling.clustering import cluster_order

    starts, deciding, impacts = _deciding(spool, terms)
    placed = np.diff(starts) > 0
    bounds = np.concatenate([[0], starts[1:][placed]])  # those left out have no terms
    order = rows[placed]
    if method == "cluster":
        order = order[cluster_order((bounds, deciding, impacts), terms, seed)]
    else:
        del impacts
        np.random.default_rng(seed).shuffle(order)
        bisection_order(starts, deciding, order, terms)
    return np.concatenate([order, rows[~placed]])


def _deciding(spool: Spool, terms: int) -> Documents:
    """Return of all documents the heaviest terms that are in several documents, but not in many."""
    from sluice.indexing.inverted.spooling.approximation import heaviest

    frequencies = np.zeros(terms, dtype=np.int64)
    for _, present, _ in _parts(spool):
        frequencies += np.bincount(present, minlength=terms)
    several = (frequencies > 1) & (frequencies <= max(COMMON * len(spool), FEW))
    counts = [np.zeros(1, np.int64)]
    deciding, impacts = [np.empty(0, np.uint32)], [np.empty(0, np.float32)]
    for starts, present, weights in _parts(spool):
        chosen = several[present] & (weights > 0)
        before = np.concatenate([[0], np.cumsum(chosen)])
        heavy = heaviest((before[starts], present[chosen], weights[chosen]), HEAVIEST)
        counts.append(np.diff(heavy[0]))
        deciding.append(heavy[1])
        impacts.append(heavy[2])
    starts = np.cumsum(np.concatenate(counts))
    return starts, np.concatenate(deciding), np.concatenate(impacts)


def _parts(spool: Spool) -> Iterator[Documents]:
    for first in range(0, len(spool), STRETCH):
        yield spool.documents(first, min(first + STRETCH, len(spool)))
