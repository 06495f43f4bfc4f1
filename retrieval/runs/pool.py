"""Pools the documents of several runs, query by query, in flat arrays for many queries at once.

What is computed over lists is then one array operation for a block of queries, and costs a few
microseconds a query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import lt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.retrieval.runs.run import Ranking, Run, ordered_keys

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
