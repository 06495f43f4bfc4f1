"""Several runs at once: their documents pooled in flat arrays, and how alike their rankings are.

What is computed over pooled lists is one array operation for a block of queries, and costs a few
microseconds a query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import lt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.runs.run import Ranking, Run, ordered_keys


class RankSimilarity(NamedTuple):
    """Means over ``queries`` that both runs have; ``tau`` over those with two shared documents.

    It is None without such a query.
    """

    rbo: float
    overlap: float
    tau: float | None
    queries: int


def rank_biased_overlap(first: Sequence[str], second: Sequence[str], p: float = 0.9) -> float:
    """Return how alike two lists of document ids are, best first: 1 if equal, 0 if disjoint.

    RBO extrapolated from what is seen of two endless lists (Webber, Moffat and Zobel, 2010,
    equation 32), which may differ in length: the overlap at depth d weighs p^(d - 1), so that the
    first 10 have 86% of the weight at p = 0.9. Two empty lists are the same, an empty one and
    another are disjoint. ``DataError`` for a list with an id twice.
    """
    if not 0.0 < p < 1.0:
        raise ConfigError(f"p: {p!r}; expected a number between 0 and 1, such as 0.9")
    short, long = sorted((_distinct(first), _distinct(second)), key=len)
    if not short:
        return 1.0 if not long else 0.0
    depth = np.arange(1, len(long) + 1)
    weights = p**depth
    overlaps = _overlaps(short, long).astype(np.float64)  # [len(long)]
    total, at_short = float(overlaps[-1]), float(overlaps[len(short) - 1])
    below = depth > len(short)
    seen = float((overlaps / depth * weights).sum())
    assumed = float((at_short * (depth - len(short)) / (len(short) * depth) * weights)[below].sum())
    last = (total - at_short) / len(long) + at_short / len(short)
    return (1 - p) / p * (seen + assumed) + last * p ** len(long)


def overlap_at(first: Sequence[str], second: Sequence[str], k: int) -> float:
    """Return shared documents among the first ``k`` of both, over k or the longer list's length."""
    k = whole_number(k, "k", 1)
    head, other = _distinct(first[:k]), _distinct(second[:k])
    most = max(len(head), len(other))
    return len(set(head) & set(other)) / most if most else 1.0


def kendall_tau(first: Sequence[str], second: Sequence[str]) -> float | None:
    """Return Kendall's tau over the documents that both lists have: 1 same order, -1 reversed.

    The lists have no ties. None where fewer than two documents are shared. O(n^2) memory.
    """
    places = {doc: place for place, doc in enumerate(_distinct(second))}
    shared = np.array([places[doc] for doc in _distinct(first) if doc in places])
    count = len(shared)
    if count < 2:
        return None
    upper = np.triu_indices(count, 1)
    signs = np.sign(shared[upper[1]] - shared[upper[0]])
    return float(signs.sum()) / (count * (count - 1) / 2)


def compare_rankings(
    first: Run,
    second: Run,
    *,
    k: int = 10,
    p: float = 0.9,
) -> RankSimilarity:
    """Return how alike two runs are, query by query: RBO of complete lists, overlap at ``k``, tau.

    ``ConfigError`` where no query is in both.
    """
    shared = [query for query in first if query in second]
    if not shared:
        raise ConfigError(f"no query of {first.name!r} is in {second.name!r}")
    pairs = [(_ids(first[query]), _ids(second[query])) for query in shared]
    taus = [tau for one, other in pairs if (tau := kendall_tau(one, other)) is not None]
    return RankSimilarity(
        rbo=float(np.mean([rank_biased_overlap(one, other, p) for one, other in pairs])),
        overlap=float(np.mean([overlap_at(one, other, k) for one, other in pairs])),
        tau=float(np.mean(taus)) if taus else None,
        queries=len(shared),
    )


def _ids(ranking: Ranking) -> list[str]:
    return list(ranking.doc_ids)


def _distinct(ids: Sequence[str]) -> list[str]:
    if isinstance(ids, str | Ranking):
        raise ConfigError(f"{type(ids).__name__}: expected a list of document ids (its doc_ids)")
    doc_ids = list(ids)
    if len(set(doc_ids)) != len(doc_ids):
        twice = next(doc for place, doc in enumerate(doc_ids) if doc in doc_ids[:place])
        raise DataError(f"document {twice!r} is in the list twice; expected each document once")
    return doc_ids


def _overlaps(short: list[str], long: list[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return how many documents the first d of both share, for d from 1 to the longer length."""
    other = {doc: place for place, doc in enumerate(long)}
    depths = [max(place, other[doc]) for place, doc in enumerate(short) if doc in other]
    return np.cumsum(np.bincount(np.array(depths, np.int64), minlength=len(long)))


Array = NDArray[np.float64]
Places = NDArray[np.int64]

HITS = 16_384  # in a block: what they need stays in the cache
LARGEST = float(np.finfo(np.float32).max)


class Lists(NamedTuple):
    """One run's lists for the queries of a pool, end to end.

    ``scores`` float64 ``[hits]``, ``lengths`` ``[queries]`` (0 where the run has none), and each
    hit's place in the pool.
    """

    scores: Array
    lengths: Places
    places: Places

    @property
    def ranks(self) -> Array:
        """Ranks from 1 in the list's own order."""
        starts = np.cumsum(self.lengths) - self.lengths
        return np.arange(1.0, len(self.scores) + 1) - np.repeat(starts, self.lengths)

    def lowest(self) -> Array:
        """Return each list's lowest score ``[queries]``, 0 for an empty list."""
        return self._reduced(np.minimum)

    def highest(self) -> Array:
        """Return each list's highest score ``[queries]``, 0 for an empty list."""
        return self._reduced(np.maximum)

    def mean(self, values: Array) -> Array:
        """Return the mean of each list's ``values`` ``[queries]``, 0 for an empty list."""
        return self._reduced(np.add, values) / np.maximum(self.lengths, 1)

    def each(self, of_queries: NDArray[Any]) -> NDArray[Any]:
        """Return a number of each query ``[queries]`` for each of its hits ``[hits]``."""
        return np.repeat(of_queries, self.lengths)

    def _reduced(self, operation: np.ufunc, values: Array | None = None) -> Array:
        reduced = np.zeros(len(self.lengths))
        full = self.lengths > 0
        if full.any():
            starts = (np.cumsum(self.lengths) - self.lengths)[full]
            reduced[full] = operation.reduceat(self.scores if values is None else values, starts)
        return reduced


class Pool(NamedTuple):
    """The documents of some queries in any of the runs: query after query, in order of appearance.

    ``hits`` are the ids of all runs' hits, ``at`` ``[documents]`` where each document occurs in
    them first; ``sizes`` ``[queries]`` are the queries' numbers of documents, and ``lists`` has one
    entry a run.
    """

    queries: Sequence[str]
    hits: Sequence[str]
    at: Places
    sizes: Places
    lists: tuple[Lists, ...]

    @classmethod
    def of(cls, runs: Sequence[Run], queries: Sequence[str]) -> Pool:
        """Pool the runs' documents for these queries."""
        doc_ids: list[str] = []
        first: list[int] = []  # of every hit: where its document occurs first in the query's hits
        scores: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
        lengths: list[int] = []
        empty = Ranking([], [])
        for query in queries:
            known: dict[str, int] = {}
            start = 0
            for run in runs:
                ranking = run.get(query, empty)
                end = start + len(ranking)
                first += map(known.setdefault, ranking.doc_ids, range(start, end))
                doc_ids += ranking.doc_ids
                scores.append(ranking.scores)
                lengths.append(end - start)
                start = end
        number = np.concatenate(scores).astype(np.float64)
        table = np.array(lengths, np.int64).reshape(len(queries), len(runs))
        counts = table.sum(axis=1)
        flat = np.array(first, np.int64) + np.repeat(np.cumsum(counts) - counts, counts)
        fresh = flat == np.arange(len(flat))
        seen = np.concatenate(([0], np.cumsum(fresh)))
        places = seen[flat]
        owner = np.repeat(np.tile(np.arange(len(runs)), len(queries)), lengths)
        lists = []
        for at in range(len(runs)):
            its = np.flatnonzero(owner == at)
            lists.append(Lists(number[its], table[:, at], places[its]))
        sizes = np.diff(seen[np.concatenate(([0], np.cumsum(counts)))])
        return cls(queries, doc_ids, np.flatnonzero(fresh), sizes, tuple(lists))

    @classmethod
    def blocks(cls, runs: Sequence[Run], queries: Sequence[str] | None = None) -> Iterator[Pool]:
        """Yield the pools of some queries, all of the runs' in order of appearance unless given."""
        if queries is None:
            queries = list(dict.fromkeys(query for run in runs for query in run))
        start, size = 0, 1
        while start < len(queries):
            pool = cls.of(runs, queries[start : start + size])
            yield pool
            start += size
            size = max(1, min(256, HITS * size // max(1, len(pool.hits))))

    def spread(self, lists: Lists, values: Array, missing: Array | None = None) -> Array:
        """Return a value for each document ``[documents]`` from one for each hit of a run.

        ``missing`` ``[queries]`` is what documents get that the run did not find, 0 unless given.
        """
        least = np.zeros(len(self.sizes)) if missing is None else missing
        shares = np.repeat(least, self.sizes)
        shares[lists.places] = values
        return shares

    def ids(self, places: Places) -> list[str]:
        """Return the ids of documents of the pool."""
        return list(map(self.hits.__getitem__, self.at[places].tolist()))

    def order(self, scores: NDArray[np.float32]) -> Places:
        """Return the documents query by query, best score first; ties stay in pool order."""
        width = int(self.sizes.max(initial=0))
        starts = np.cumsum(self.sizes) - self.sizes
        within = np.arange(len(scores)) - np.repeat(starts, self.sizes)
        table = np.full((len(self.sizes), width), np.iinfo(np.int64).max)
        filled = np.arange(width) < self.sizes[:, None]
        table[filled] = (-ordered_keys(scores) << 32) | within  # whole numbers sort fastest
        table.sort(axis=1)
        return (table[filled] & 0xFFFFFFFF) + np.repeat(starts, self.sizes)

    def ranked(self, sums: Array) -> Iterator[tuple[str, Ranking]]:
        """Yield the queries' rankings by float32 scores ``[documents]``, ties by id descending."""
        scores = np.clip(sums, -LARGEST, LARGEST).astype(np.float32)
        order = self.order(scores)
        scores = scores[order]
        self._break_ties(order, scores)
        doc_ids, start = self.ids(order), 0
        for query, size in zip(self.queries, self.sizes.tolist(), strict=True):
            yield query, Ranking(doc_ids[start : start + size], scores[start : start + size])
            start += size

    def _break_ties(self, order: Places, scores: NDArray[np.float32]) -> None:
        """Put tied documents in order of id, descending; ``scores`` are in this order already."""
        same = scores[1:] == scores[:-1]
        ends = np.cumsum(self.sizes) - 1  # two queries' documents do not tie
        same[ends[(ends >= 0) & (ends < len(same))]] = False
        tied = np.flatnonzero(same)
        if not len(tied):
            return
        breaks = np.flatnonzero(np.diff(tied) > 1)
        first = tied[np.concatenate(([0], breaks + 1))]
        last = tied[np.concatenate((breaks, [len(tied) - 1]))] + 2
        pairs = first[last - first == 2]  # most ties of rank fusion are of two documents
        before, after = self.ids(order[pairs]), self.ids(order[pairs + 1])
        wrong = pairs[np.fromiter(map(lt, before, after), np.bool_, len(pairs))]
        order[wrong], order[wrong + 1] = order[wrong + 1], order[wrong]
        more = last - first > 2
        for begin, end in zip(first[more].tolist(), last[more].tolist(), strict=True):
            group = order[begin:end]
            named = zip(self.ids(group), group.tolist(), strict=True)
            order[begin:end] = [place for _, place in sorted(named, reverse=True)]
