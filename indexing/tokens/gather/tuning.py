"""Chooses how many candidates, and for `mode: auto` whether to gather at all, by measuring."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.indexing.hits import Hits
from sluice.indexing.tokens.gather.centroid_gather import PROBES
from sluice.indexing.tokens.gather.recall import Sample
from sluice.indexing.tokens.gather.settings import GatherSettings

FIRST = 100  # candidates tried first; then twice as many
WIDE = 4 * PROBES  # centroids probed where more candidates do not help
TIMED = 15  # queries timed one at a time
ENOUGH = 10  # documents that the candidates must be a share of, for more of them to be tried


class Searches(Protocol):
    """The index, as far as measuring needs it."""

    def search_tokens(self, queries: TokenVectors, k: int, parameters: Mapping[str, Any]) -> Hits:
        """Return hits with these parameters."""
        ...


@dataclass(frozen=True, slots=True)
class Chosen:
    """A depth, and a sentence why."""

    mode: str
    candidates: int
    probes: int
    reason: str
    meets: bool


def choose_depth(
    index: Searches, sample: Sample, documents: int, settings: GatherSettings, seed: int
) -> Chosen:
    """Return the least depth whose recall at 10 reaches the target.

    It does so on one half of the queries, and on the other half, which checks it; else the next
    depth is tried. Where none does, the deepest is returned, which does not meet it.
    """
    order = np.random.default_rng(seed).permutation(len(sample))
    halves = [
        np.sort(half) for half in (order[: -(-len(order) // 2)], order[-(-len(order) // 2) :])
    ]
    parts = [sample.part(half) for half in halves if len(half)]
    target = settings.target
    tried = Chosen("gather", FIRST, PROBES, "", False)
    for candidates, probes in _depths(documents, settings.probes):
        parameters = {"mode": "gather", "candidates": candidates, "probes": probes}

        def search(queries: TokenVectors, k: int, given: Mapping[str, Any] = parameters) -> Hits:
            return index.search_tokens(queries, k, given)

        recalls: list[float] = []
        for part in parts:
            recalls.append(float(part.recalls(search, 10).mean()))
            if recalls[-1] < target:
                break
        meets = len(recalls) == len(parts) and min(recalls) >= target
        shown = " and ".join(f"{share:.4f}" for share in recalls)
        reason = (
            f"candidates {candidates:,}, probes {probes}: recall@10 {shown} on halves of "
            f"{len(sample)} {sample.source}, target {target:g}"
        )
        tried = Chosen("gather", candidates, probes, reason, meets)
        if meets:
            break
    return tried


def choose_mode(
    index: Searches, sample: Sample, chosen: Chosen, settings: GatherSettings
) -> Chosen:
    """Return exact search where it is fast enough or at least as fast, else the chosen depth."""
    gathered = {"mode": "gather", "candidates": chosen.candidates, "probes": chosen.probes}
    exact_ms = _median_ms(index, sample, {"mode": "exact"})
    gather_ms = _median_ms(index, sample, gathered)
    times = f"exact {exact_ms:.2f} ms, gather {gather_ms:.2f} ms a query; {chosen.reason}"
    limit = settings.latency_ms
    if limit is not None and exact_ms <= limit:
        return _exact(chosen, f"exact search meets {limit:g} ms: {times}")
    if gather_ms >= exact_ms:
        return _exact(chosen, f"exact search is as fast: {times}", limit is None)
    meets = chosen.meets and (limit is None or gather_ms <= limit)
    return Chosen("gather", chosen.candidates, chosen.probes, times, meets)


def _exact(chosen: Chosen, reason: str, meets: bool = True) -> Chosen:
    return Chosen("exact", chosen.candidates, chosen.probes, reason, meets)


def _median_ms(index: Searches, sample: Sample, parameters: Mapping[str, Any]) -> float:
    times = []
    for place in range(min(TIMED, len(sample))):
        query = sample.queries.rows(slice(place, place + 1))
        start = time.perf_counter()
        index.search_tokens(query, 10, parameters)
        times.append(time.perf_counter() - start)
    return 1000 * float(np.median(times))


def _depths(documents: int, probes: int | None) -> Iterator[tuple[int, int]]:
    """Yield candidates and probes, the cheapest first; a fixed number of probes stays."""
    few = PROBES if probes is None else probes
    most = max(FIRST, documents // 2)
    candidates = FIRST
    while candidates < most:
        yield candidates, few
        candidates *= 2
    yield most, few
    if probes is None:
        yield most, WIDE
