"""Measures hubness: how unevenly documents occur among the first k hits of many queries."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.runs.run import Run


class Hubness(NamedTuple):
    """``skewness`` of the k-occurrences, and what makes it.

    ``largest`` is the number of queries that have the commonest document among their first k,
    ``never`` the share of documents that no query has, and ``hubs`` the commonest documents with
    their numbers.
    """

    skewness: float
    largest: int
    never: float
    hubs: tuple[tuple[str, int], ...]


def hubness(run: Run, k: int = 10, *, documents: int | None = None) -> Hubness:
    """Return how uneven the k-occurrences N_k of documents are: their skewness and their hubs.

    N_k(d) is the number of queries with d among their first ``k`` hits; its skewness E[(N - m)^3] /
    s^3 is 0 for an even spread and grows with hubs (Radovanovic, Nanopoulos and Ivanovic, 2010).
    ``documents`` is the size of the corpus; unless given, those the run has at any depth are all.
    """
    k = whole_number(k, "k", 1)
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    for ranking in run.values():
        counts.update(ranking.doc_ids[:k])
        if documents is None:
            seen.update(ranking.doc_ids)
    total = len(seen) if documents is None else whole_number(documents, "documents", 0)
    if total < len(counts):
        raise ConfigError(f"documents: {total:,}, but the run's first hits are {len(counts):,}")
    if not total:
        return Hubness(0.0, 0, 0.0, ())
    occurrences = np.zeros(total)
    occurrences[: len(counts)] = list(counts.values())
    centred = occurrences - occurrences.mean()
    variance = float(np.mean(centred**2))
    skewness = float(np.mean(centred**3)) / variance**1.5 if variance > 0 else 0.0
    hubs = tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:10])
    largest = hubs[0][1] if hubs else 0
    return Hubness(skewness, largest, 1.0 - len(counts) / total, hubs)
