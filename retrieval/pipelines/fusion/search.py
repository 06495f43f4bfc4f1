"""Values of fusions of some runs on judged queries: many weights of a few methods."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.retrieval.evaluation.judgements import Judgements
from sluice.retrieval.evaluation.measures import Measure, compute, settled
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.pipelines.fusion.fusion import METHODS, Fusion
from sluice.retrieval.runs.pool import LARGEST, Array, Places, Pool
from sluice.retrieval.runs.run import Run, ordered_keys

STEPS = 20  # of the lattice of weights, fewer where that were more than ``MOST``
MOST = 231

Weights = tuple[float, ...]


class _Documents(NamedTuple):
    """The documents of all queries, query after query in ``sizes``, by id descending.

    ``at`` ``[pools]`` are their places in the pools; all that follows is in their order: ``found``
    ``[runs, documents]``, the query and grade of each document, and whether it was judged at all.
    """

    at: list[Places]
    sizes: Places
    found: NDArray[np.bool_]
    owner: Places
    grades: Places
    judged: NDArray[np.bool_]


class FusionSearch:
    """Values of fusions of some runs on judged queries; ``values`` has all computed so far.

    With ``near`` only judged documents and the first ``near`` of each run are looked at, which is
    several times faster and all but exact for measures of the first few documents.
    """

    def __init__(
        self, runs: Sequence[Run], qrels: Qrels, measure: Measure, *, near: int | None = None
    ) -> None:
        there = [query for query in qrels if any(query in run for run in runs)]
        judged = [qrels[query] for query in there]
        grades = [grade for each in qrels.values() for grade in each.values()]
        self.runs, self.measure = runs, settled(measure, np.array(grades, np.int64))
        self.queries = len(qrels)
        self.values: dict[Fusion, Array] = {}  # by query, those that no run has last
        self._columns: tuple[Fusion, list[Array]] | None = None
        self._pools = list(Pool.blocks(runs, there))
        self._documents = _documents(self._pools, qrels, near)
        self._judged_query = np.repeat(np.arange(len(there)), [len(each) for each in judged])
        self._judged_grade = np.array([g for each in judged for g in each.values()], np.int64)

    def lattice(self, fusion: Fusion) -> list[Fusion]:
        """Return the fusion with all weights of the lattice, the most even ones first."""
        count = len(self.runs)
        weights = list(dict.fromkeys([(1.0 / count,) * count, *_lattice(count, _steps(count))]))
        weights.sort(key=lambda each: round(float(np.var(each)), 9))
        return [replace(fusion, weights=each) for each in weights]

    def mean(self, fusion: Fusion) -> float:
        """Return the mean over the judged queries; one that no run has counts 0."""
        return float(self.by_query(fusion).sum()) / self.queries

    def by_query(self, fusion: Fusion) -> Array:
        """Return the measure of each judged query, 0 for those that no run has."""
        if fusion not in self.values:
            found = self._computed(fusion, self._shares(replace(fusion, weights=None)))
            self.values[fusion] = np.append(found, np.zeros(self.queries - len(found)))
        return self.values[fusion]

    def _shares(self, fusion: Fusion) -> list[Array]:
        """Return by run what it gives each document; those of the fusion asked last are kept."""
        if self._columns is None or self._columns[0] != fusion:
            columns = []
            for run in range(len(self.runs)):
                parts = []
                for pool, at in zip(self._pools, self._documents.at, strict=True):
                    lists = pool.lists[run]
                    shares = fusion.shares(lists, fusion.minimum_of(run))
                    parts.append(pool.spread(lists, shares.found, shares.missing)[at])
                columns.append(np.concatenate(parts))
            self._columns = (fusion, columns)
        return self._columns[1]

    def _computed(self, fusion: Fusion, columns: Sequence[Array]) -> Array:
        documents = self._documents
        used = fusion.used(len(self.runs))
        sums = np.zeros(len(documents.owner))
        for run in used:
            sums += fusion.weight(run) * columns[run]
        if METHODS[fusion.method].multiplied:
            sums *= documents.found[used].sum(axis=0)
        entered = np.any(documents.found[used], axis=0)  # the others are of runs of weight 0
        scores = np.where(entered, np.clip(sums, -LARGEST, LARGEST), -np.inf).astype(np.float32)
        places, query, rank = _first(scores, documents.sizes, self.measure.cutoff)
        hits = documents.judged[places] & entered[places]
        places, query, rank = places[hits], query[hits], rank[hits]
        return compute(
            self.measure,
            Judgements(
                hit_query=query,
                hit_rank=rank,
                hit_grade=documents.grades[places],
                judged_query=self._judged_query,
                judged_grade=self._judged_grade,
                retrieved=np.bincount(documents.owner[entered], minlength=len(documents.sizes)),
            ),
        )


def _first(
    scores: NDArray[np.float32], sizes: Places, cutoff: int | None
) -> tuple[Places, Places, Places]:
    """Return each query's best documents, as places, queries and ranks; ties in their order."""
    width = int(sizes.max(initial=0))
    starts = np.cumsum(sizes) - sizes
    filled = np.arange(width) < sizes[:, None]
    table = np.full((len(sizes), width), np.iinfo(np.int64).max)
    within = np.arange(len(scores)) - np.repeat(starts, sizes)
    table[filled] = (-ordered_keys(scores) << 32) | within  # whole numbers sort fastest
    if cutoff is not None and cutoff < width:
        table = np.partition(table, cutoff - 1, axis=1)[:, :cutoff]
        filled = filled[:, :cutoff]
    table.sort(axis=1)
    query, rank = np.nonzero(filled)
    return (table[filled] & 0xFFFFFFFF) + starts[query], query, rank


def _documents(pools: Sequence[Pool], qrels: Qrels, near: int | None) -> _Documents:
    parts = [_of_pool(pool, qrels, near) for pool in pools]
    start, owners = 0, []
    for part in parts:
        owners.append(part.owner + start)
        start += len(part.sizes)
    return _Documents(
        at=[at for part in parts for at in part.at],
        sizes=np.concatenate([part.sizes for part in parts]),
        found=np.concatenate([part.found for part in parts], axis=1),
        owner=np.concatenate(owners),
        grades=np.concatenate([part.grades for part in parts]),
        judged=np.concatenate([part.judged for part in parts]),
    )


def _of_pool(pool: Pool, qrels: Qrels, near: int | None) -> _Documents:
    owner = np.repeat(np.arange(len(pool.queries)), pool.sizes)
    ids = pool.ids(np.arange(len(pool.at)))
    grades: list[Mapping[str, int]] = [qrels[query] for query in pool.queries]
    known = [grades[query].get(doc) for query, doc in zip(owner.tolist(), ids, strict=True)]
    judged = np.array([grade is not None for grade in known], np.bool_)
    kept = judged | np.full(len(ids), near is None)
    for lists in pool.lists:
        kept[lists.places[lists.ranks <= (near or 0)]] = True
    places = sorted(np.flatnonzero(kept).tolist(), key=ids.__getitem__, reverse=True)
    at = np.array(places, np.int64)
    at = at[np.argsort(owner[at], kind="stable")]
    values = np.array([grade or 0 for grade in known], np.int64)
    found = [pool.spread(lists, np.ones(len(lists.scores)))[at] > 0 for lists in pool.lists]
    return _Documents(
        at=[at],
        sizes=np.bincount(owner[at], minlength=len(pool.queries)),
        found=np.array(found),
        owner=owner[at],
        grades=values[at],
        judged=judged[at],
    )


def _steps(runs: int) -> int:
    steps = STEPS
    while steps > 1 and math.comb(steps + runs - 1, runs - 1) > MOST:
        steps -= 1
    return steps


def _lattice(runs: int, steps: int) -> Iterator[Weights]:
    """Yield all weights that are multiples of 1 / ``steps`` and add up to 1."""

    def parts(left: int, count: int) -> Iterator[tuple[int, ...]]:
        if count == 1:
            yield (left,)
            return
        for first in range(left + 1):
            for rest in parts(left - first, count - 1):
                yield (first, *rest)

    for found in parts(steps, runs):
        yield tuple(round(part / steps, 6) for part in found)
