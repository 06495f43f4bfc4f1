"""The one order of a ranking: float32 score descending, then document id descending.

It is trec_eval's order, and trec_eval reads scores as float32, so scores are compared in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]
LOWEST = -0x7F7FFFFF  # the ordered key of the most negative finite float32


def canonical_order(doc_ids: Sequence[str], scores: Scores) -> NDArray[np.int64]:
    """Return the positions that put one query's hits in score order, ties by id descending."""
    order = np.argsort(-scores, kind="stable").astype(np.int64, copy=False)
    ordered = scores[order]
    tied = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(tied):
        breaks = np.flatnonzero(np.diff(tied) > 1)
        first = tied[np.concatenate(([0], breaks + 1))]
        last = tied[np.concatenate((breaks, [len(tied) - 1]))] + 2
        for begin, end in zip(first.tolist(), last.tolist(), strict=True):
            group = sorted(order[begin:end].tolist(), key=doc_ids.__getitem__, reverse=True)
            order[begin:end] = group
    return order


def is_canonical(doc_ids: Sequence[str], scores: Scores) -> bool:
    """Return whether the hits are already in the order of ``canonical_order``."""
    if bool((scores[1:] > scores[:-1]).any()):
        return False
    tied = np.flatnonzero(scores[1:] == scores[:-1]).tolist()
    return all(doc_ids[place] > doc_ids[place + 1] for place in tied)


def strictly_decreasing(scores: Scores) -> Scores:
    """Return the nearest scores that fall strictly in the given order.

    A score that is not below its predecessor becomes the next smaller float32; the others
    stay. Scores too near the lowest float32 for that become n, n - 1, ..., 1.
    """
    if len(scores) < 2 or bool((scores[1:] < scores[:-1]).all()):
        return scores
    places = np.arange(len(scores), dtype=np.int64)
    # With floats as consecutive integers: keys[i] = min over j <= i of key[j] - (i - j).
    keys = np.minimum.accumulate(ordered_keys(scores) + places) - places
    if keys[-1] < LOWEST:
        return np.arange(len(scores), 0, -1).astype(np.float32)
    bits = np.where(keys >= 0, keys, 0x80000000 - keys).astype(np.uint32)
    return bits.view(np.float32)


def ordered_keys(scores: Scores) -> NDArray[np.int64]:
    """Integers in the order of the floats, neighbours one apart; both zeros are 0."""
    bits = np.ascontiguousarray(scores, dtype=np.float32).view(np.int32).astype(np.int64)
    return np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))
