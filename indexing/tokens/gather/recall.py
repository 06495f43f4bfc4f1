"""Measured recall of a gather: noted in the index, and what chooses the number of candidates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing.hits import Hits, Rows
from sluice.indexing.recall import DEPTHS, RecallNote
from sluice.indexing.tokens.gather.centroid_gather import PROBES
from sluice.indexing.tokens.gather.settings import GatherSettings

QUERIES = 200  # to measure with, at most
FEWEST_QUERIES = 32
PRODUCTS = 1 << 42  # multiplications that exact search may take for all of them
WINDOW = 32  # tokens of a document that serve as a query

Search = Callable[[TokenVectors, int], Hits]


@dataclass(frozen=True, slots=True)
class MeasuredRecall(RecallNote):
    """What share of the exact best ``k`` the gather found, on average over sampled queries.

    ``source`` says what the queries were: given ones, or windows of documents' own tokens (a
    document is never an answer to its own), which may be easier or harder. ``added`` and
    ``deleted`` documents changed the index since.
    """

    at_10: float
    at_100: float
    queries: int
    source: Literal["queries", "documents"]
    documents: int
    candidates: int
    probes: int
    seed: int
    added: int = 0
    deleted: int = 0

    def __str__(self) -> str:
        """Return a line for reports."""
        what = "queries" if self.source == "queries" else "windows of documents' tokens"
        return self._with_changes(
            f"recall@10 {self.at_10:.3f}, @100 {self.at_100:.3f} of exact, on {self.queries} {what}"
            f" against {self.documents:,} documents (candidates {self.candidates:,}, probes "
            f"{self.probes})"
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """Queries, and the exact hits of each; ``own`` is a query's own row, -1 if it has none."""

    queries: TokenVectors
    own: Rows
    source: Literal["queries", "documents"]
    exact: Hits

    @classmethod
    def searched_exactly(
        cls,
        queries: TokenVectors,
        own: Rows,
        source: Literal["queries", "documents"],
        exact: Search,
    ) -> Sample:
        """Search the queries exactly, for one hit more than the largest depth: their own."""
        return cls(queries, own, source, exact(queries, max(DEPTHS) + 1))

    def __len__(self) -> int:
        return len(self.queries)

    def part(self, places: NDArray[np.int64]) -> Sample:
        """Return some of the queries."""
        exact = Hits(self.exact.rows[places], self.exact.scores[places])
        return Sample(self.queries.rows(places), self.own[places], self.source, exact)

    def recalls(self, search: Search, k: int) -> NDArray[np.float64]:
        """Return each query's share of the exact best ``k``, at most 100.

        A hit counts if its score reaches that of the exact k-th best: scores of both searches are
        equal bit for bit, and one of several tied at the end is as good as another.
        """
        found = search(self.queries, k + int((self.own >= 0).any()))
        shares = np.ones(len(self))
        for place, own in enumerate(self.own.tolist()):
            best = _others(self.exact, place, own)[:k]
            if len(best):
                good = int((_others(found, place, own)[:k] >= best[-1]).sum())
                shares[place] = good / len(best)
        return shares


def _others(hits: Hits, place: int, own: int) -> NDArray[np.float32]:
    rows, scores = hits.rows[place], hits.scores[place]
    others: NDArray[np.float32] = scores[(rows >= 0) & (rows != own)]
    return others


def sampled_documents(
    rows: Rows, documents: Callable[[Rows], TokenVectors], count: int, seed: int
) -> tuple[TokenVectors, Rows]:
    """Return windows of tokens of some of the rows, and the rows: queries where none are given."""
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(rows, min(count, len(rows)), replace=False))
    texts = documents(chosen)
    windows = []
    for text in texts:
        start = int(rng.integers(0, max(1, len(text) - WINDOW + 1)))
        windows.append(text[start : start + WINDOW])
    return TokenVectors.of(windows, texts.dim), chosen


def query_count(tokens: int, dim: int) -> int:
    """Return how many queries to measure with, fewer in large indexes: exact search takes long."""
    affordable = PRODUCTS // max(1, tokens * dim * WINDOW)
    return max(FEWEST_QUERIES, min(QUERIES, affordable))


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
