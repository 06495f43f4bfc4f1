"""Condorcet fusion: documents ordered by majorities of the lists."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cmp_to_key


def condorcet(lists: Sequence[Sequence[str]], weights: Sequence[float]) -> list[str]:
    """Return all documents of ranked lists, one that most lists put before another before it.

    Montague and Aslam (2002): a merge sort with the majority as its comparison, lists counted by
    their weights, so that cycles are cut somewhere. A list puts what it has before what it lacks
    and says nothing of two that it lacks. Where the lists are even, the document with the larger
    weighted sum of reciprocal ranks goes first, then the larger id. O(n log n) comparisons.
    """
    ranks = [{doc: rank for rank, doc in enumerate(hits)} for hits in lists]
    merit: dict[str, float] = {}
    for hits, weight in zip(lists, weights, strict=True):
        for rank, doc in enumerate(hits):
            merit[doc] = merit.get(doc, 0.0) + weight / (60 + rank + 1)
    start = sorted(merit, key=lambda doc: (merit[doc], doc), reverse=True)
    voters = list(zip(ranks, weights, strict=True))

    def compared(one: str, other: str) -> int:
        votes = 0.0
        for places, weight in voters:
            first, second = places.get(one), places.get(other)
            if first is not None and (second is None or first < second):
                votes -= weight
            elif second is not None:
                votes += weight
        return (votes > 0) - (votes < 0)

    return sorted(start, key=cmp_to_key(compared))
