"""Measures how alike two rankings are: rank-biased overlap, overlap at a depth, Kendall's tau."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.runs.run import Ranking, Run


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
    k: Annotated[int, Ge(1), "Depth of the shared documents."] = 10,
    p: Annotated[float, "P", "Persistence of rank-biased overlap, between 0 and 1."] = 0.9,
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
