"""The search for fusion weights: many weights over one pool of documents, exactly as fused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.retrieval.evaluation.measure_table import Judgements
from sluice.retrieval.evaluation.measures import Measure, compute, settled
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.pipelines.fusion.fusion import METHODS, Fusion
from sluice.retrieval.runs.pool import LARGEST, Array, Places, Pool
from sluice.retrieval.runs.run import Run

STEPS = 20  # of the lattice of weights, fewer where that were more than ``MOST``
MOST = 231
FOLDS = 5

Weights = tuple[float, ...]
Columns = list[list[Array]]  # by block, by run: what it gives each document


class _Block(NamedTuple):
    """Some queries: their pool, its documents by id descending, and their judgements.

    ``by_id`` are places in the pool; all that follows is in its order: ``found`` ``[runs,
    documents]``, the query and grade of each document, and whether it was judged at all.
    """

    pool: Pool
    by_id: Places
    found: NDArray[np.bool_]
    owner: Places
    grades: Places
    judged: NDArray[np.bool_]
    judged_query: Places
    judged_grade: Places


class FusionSearch:
    """Values of fusions of some runs on judged queries; ``values`` keeps all that were asked."""

    def __init__(self, runs: Sequence[Run], qrels: Qrels, measure: Measure) -> None:
        grades = [grade for judged in qrels.values() for grade in judged.values()]
        self.runs, self.measure = runs, settled(measure, np.array(grades, np.int64))
        self.queries = len(qrels)
        self.values: dict[Fusion, Array] = {}  # by query
        self._lattice: list[Fusion] = []
        self._columns: dict[Fusion, Columns] = {}
        there = [query for query in qrels if any(query in run for run in runs)]
        self._blocks = [_block(pool, qrels) for pool in Pool.blocks(runs, there)]

    def best(self, fusion: Fusion) -> Fusion:
        """Return the fusion with the best weights: of a lattice, then in smaller steps."""
        self._columns.clear()  # of the fusion before
        steps = _steps(len(self.runs))
        even = (1.0 / len(self.runs),) * len(self.runs)
        tried = [replace(fusion, weights=w) for w in (even, *_lattice(len(self.runs), steps))]
        self._lattice += tried
        best, step = max(tried, key=self.merit), 1.0 / (2 * steps)
        while step >= 1.0 / (8 * steps):
            near = [replace(best, weights=w) for w in _neighbours(best.weights or even, step)]
            better = max(near, key=self.merit)
            if self.merit(better) > self.merit(best):
                best = better
            else:
                step /= 2
        return best

    def merit(self, fusion: Fusion) -> tuple[float, float]:
        """Return what fusions are compared by: the mean, then how even the weights are."""
        weights = np.array(fusion.weights)
        return self.mean(fusion), -round(float(np.var(weights)), 9)

    def mean(self, fusion: Fusion) -> float:
        """Return the mean over the judged queries; one that no run has counts 0."""
        return float(self._values(fusion).sum()) / self.queries

    def held_out(self) -> float | None:
        """Return the mean over queries scored by the best of the lattice on the other folds."""
        values = np.array([self.values[fusion] for fusion in self._lattice])
        count = values.shape[1]
        folds = min(FOLDS, count)
        if folds < 2:
            return None
        evenness = np.array([self.merit(fusion)[1] for fusion in self._lattice])
        total = 0.0
        for fold in range(folds):
            held = np.arange(count) % folds == fold
            means = values[:, ~held].mean(axis=1)
            total += float(values[np.lexsort((-evenness, -means))[0], held].sum())
        return total / self.queries

    def _values(self, fusion: Fusion) -> Array:
        if fusion not in self.values:
            columns = self._columns_of(replace(fusion, weights=None))
            parts = [
                self._block_values(fusion, block, given)
                for block, given in zip(self._blocks, columns, strict=True)
            ]
            self.values[fusion] = np.concatenate(parts)
        return self.values[fusion]

    def _columns_of(self, fusion: Fusion) -> Columns:
        if fusion not in self._columns:
            self._columns[fusion] = []
            for block in self._blocks:
                columns = []
                for run, lists in enumerate(block.pool.lists):
                    shares = fusion.shares(lists, fusion.minimum_of(run))
                    spread = block.pool.spread(lists, shares.found, shares.missing)
                    columns.append(spread[block.by_id])
                self._columns[fusion].append(columns)
        return self._columns[fusion]

    def _block_values(self, fusion: Fusion, block: _Block, columns: Sequence[Array]) -> Array:
        used = fusion.used(len(self.runs))
        sums = np.zeros(len(block.by_id))
        for run in used:
            sums += fusion.weight(run) * columns[run]
        if METHODS[fusion.method].multiplied:
            sums *= block.found[used].sum(axis=0)
        entered = np.any(block.found[used], axis=0)  # the others are of runs of weight 0
        scores = np.where(entered, np.clip(sums, -LARGEST, LARGEST), -np.inf).astype(np.float32)
        order = block.pool.order(scores)
        starts = np.cumsum(block.pool.sizes) - block.pool.sizes
        hits = np.flatnonzero(block.judged[order] & entered[order])
        places = order[hits]
        query = block.owner[places]
        return compute(
            self.measure,
            Judgements(
                hit_query=query,
                hit_rank=hits - starts[query],
                hit_grade=block.grades[places],
                judged_query=block.judged_query,
                judged_grade=block.judged_grade,
                retrieved=np.bincount(block.owner[entered], minlength=len(block.pool.queries)),
            ),
        )


def _block(pool: Pool, qrels: Qrels) -> _Block:
    owner = np.repeat(np.arange(len(pool.queries)), pool.sizes)
    ids = pool.ids(np.arange(len(pool.at)))
    places = sorted(range(len(ids)), key=ids.__getitem__, reverse=True)
    by_id = np.array(places, np.int64)
    by_id = by_id[np.argsort(owner[by_id], kind="stable")]
    grades: list[Mapping[str, int]] = [qrels[query] for query in pool.queries]
    known = [grades[query].get(doc) for query, doc in zip(owner.tolist(), ids, strict=True)]
    judged = np.array([grade is not None for grade in known], np.bool_)
    values = np.array([grade or 0 for grade in known], np.int64)
    found = [pool.spread(lists, np.ones(len(lists.scores)))[by_id] > 0 for lists in pool.lists]
    return _Block(
        pool=pool,
        by_id=by_id,
        found=np.array(found),
        owner=owner,
        grades=values[by_id],
        judged=judged[by_id],
        judged_query=np.repeat(np.arange(len(grades)), [len(each) for each in grades]),
        judged_grade=np.array([grade for each in grades for grade in each.values()], np.int64),
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


def _neighbours(weights: Weights | Sequence[float], step: float) -> Iterator[Weights]:
    """Yield the weights with ``step`` moved from one run to another."""
    for giver, given in enumerate(weights):
        for taker in range(len(weights)):
            if taker != giver and given >= step:
                moved = list(weights)
                moved[giver], moved[taker] = given - step, moved[taker] + step
                yield tuple(round(weight, 6) for weight in moved)
