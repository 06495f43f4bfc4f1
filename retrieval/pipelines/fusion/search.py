"""Values of fusions of some runs on judged queries: many weights of a few methods."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cmp_to_key
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.retrieval.evaluation.judgements import Judgements
from sluice.retrieval.evaluation.measures import Measure, compute, settled
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.pipelines.fusion.fusion import METHODS, Fusion
from sluice.retrieval.runs.run import Ranking, Run, ordered_keys
from sluice.retrieval.runs.several_runs import LARGEST, Array, Places, Pool


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


class RanxMethod(NamedTuple):
    """How a method is called: ``of_ranks`` if scores do not matter, ``weighted`` if it has weights.

    ``options`` are what it takes besides. ``own`` computes it here, of ranked ids, if anything.
    """

    of_ranks: bool = False
    weighted: bool = False
    options: Sequence[str] = ()
    own: Callable[..., list[str]] | None = None


# ranx's Condorcet begins with a set of ids: its ties fall as Python happens to hash them.
RANX: Final[Mapping[str, RanxMethod]] = {
    "comb_anz": RanxMethod(),
    "comb_max": RanxMethod(),
    "comb_min": RanxMethod(),
    "comb_med": RanxMethod(),
    "comb_gmnz": RanxMethod(options=("gamma",)),
    "wmnz": RanxMethod(weighted=True),
    "mixed": RanxMethod(weighted=True),
    "isr": RanxMethod(of_ranks=True),
    "log_isr": RanxMethod(of_ranks=True),
    "logn_isr": RanxMethod(of_ranks=True, options=("sigma",)),
    "bordafuse": RanxMethod(of_ranks=True),
    "weighted_bordafuse": RanxMethod(of_ranks=True, weighted=True),
    "condorcet": RanxMethod(of_ranks=True, own=condorcet),
    "weighted_condorcet": RanxMethod(of_ranks=True, weighted=True, own=condorcet),
}


def ranx_fusion(fusion: Fusion, runs: Sequence[Run], *, name: str) -> Run:
    """Fuse runs by a method of ``RANX``; runs of weight 0 and empty lists are left out.

    Scores are normalised as for our own methods, ranks are the runs' own orders. ``comb_anz``,
    ``max``, ``min`` and ``med`` are mean, largest, least and median of the scores of the lists that
    have the document; ``comb_gmnz`` their sum x number^gamma, ``mixed`` the weighted sum x square
    root of the number, ``wmnz`` the sum x sum of these lists' weights. ``isr`` is the sum of 1 /
    rank^2 x number of lists, ``log_isr`` x its logarithm (0 for one list), ``logn_isr`` x
    log(number + sigma); ``bordafuse`` sums places counted from the end, ``condorcet`` orders by
    majorities.
    """
    places, method = fusion.used(len(runs)), RANX[fusion.method]
    fused: dict[str, Ranking | Mapping[str, float]] = {}
    for pool in Pool.blocks([runs[place] for place in places]):
        for query in pool.queries:
            fused[query] = Ranking([], [])
        fused.update(_ranx_fusion_of_pool(fusion, method, pool, places, runs))
    return Run(fused, name=name)


def _ranx_fusion_of_pool(
    fusion: Fusion, method: RanxMethod, pool: Pool, places: Sequence[int], runs: Sequence[Run]
) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Yield the fused scores of the queries of a pool, those of the same lists together.

    ranx fails at an empty list and wants every query in every run.
    """
    together: dict[tuple[int, ...], list[int]] = {}
    for at in range(len(pool.queries)):
        full = tuple(i for i, lists in enumerate(pool.lists) if lists.lengths[at])
        together.setdefault(full, []).append(at)
    values = [_values(fusion, method, pool, place, i) for i, place in enumerate(places)]
    for full, members in together.items():
        if not full:
            continue
        queries = [pool.queries[at] for at in members]
        weights = [fusion.weight(places[i]) for i in full]
        lists = []
        for i in full:
            lists.append({
                query: dict(zip(runs[places[i]][query].doc_ids, values[i][at], strict=True))
                for query, at in zip(queries, members, strict=True)
            })  # fmt: skip
        if method.own is not None:
            for query in queries:
                found = method.own([list(hits[query]) for hits in lists], weights)
                yield query, {doc: float(len(found) - at) for at, doc in enumerate(found)}
        else:
            yield from _by_ranx(fusion, method, lists, weights).items()


def _values(
    fusion: Fusion, method: RanxMethod, pool: Pool, place: int, run: int
) -> list[list[float]]:
    """Return by query the numbers ranx is given for a run's hits."""
    lists = pool.lists[run]
    if method.of_ranks:  # ranx sorts by score, so the order becomes one
        numbers = -lists.ranks
    else:
        from sluice.retrieval.pipelines.fusion.fusion import normalised_shares

        numbers = normalised_shares(lists, fusion.normalise, fusion.minimum_of(place)).found
    return [part.tolist() for part in np.split(numbers, np.cumsum(lists.lengths)[:-1])]


def _by_ranx(
    fusion: Fusion,
    method: RanxMethod,
    lists: Sequence[Mapping[str, Mapping[str, float]]],
    weights: Sequence[float],
) -> dict[str, dict[str, float]]:
    with warnings.catch_warnings():  # of its compilation
        warnings.simplefilter("ignore")
        return _called(fusion, method, lists, weights)


def _called(
    fusion: Fusion,
    method: RanxMethod,
    lists: Sequence[Mapping[str, Mapping[str, float]]],
    weights: Sequence[float],
) -> dict[str, dict[str, float]]:
    import ranx
    from ranx import fusion as methods

    options: dict[str, Any] = {name: float(getattr(fusion, name)) for name in method.options}
    if method.weighted:
        options["weights"] = weights
    runs = [ranx.Run(dict(hits)) for hits in lists]
    found: dict[str, dict[str, float]] = getattr(methods, fusion.method)(runs, **options).to_dict()
    return found


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
