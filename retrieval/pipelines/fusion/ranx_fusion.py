"""Fusion methods under ranx's names: its own unsupervised ones, and Condorcet computed here.

ranx (Bassani and Romelli, 2022) takes seconds to import and to compile, so it is imported only
when one of its methods is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cmp_to_key
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from sluice.retrieval.runs.pool import Pool
from sluice.retrieval.runs.run import Ranking, Run

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.fusion.fusion import Fusion


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
        fused.update(_of_pool(fusion, method, pool, places, runs))
    return Run(fused, name=name)


def _of_pool(
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
