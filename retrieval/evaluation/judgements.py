"""Judged hits and judgements of all queries as flat arrays, and sums of them by query."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Ints = NDArray[np.int64]


class Judgements(NamedTuple):
    """The judged hits and the judgements of ``len(retrieved)`` queries, as flat arrays.

    Of the judged hits: query (a place from 0), rank from 0 and grade, sorted by query, then rank.
    Of the qrels: query and grade of every judgement. ``retrieved`` counts each query's hits, with
    a judgement or without.
    """

    hit_query: Ints
    hit_rank: Ints
    hit_grade: Ints
    judged_query: Ints
    judged_grade: Ints
    retrieved: Ints

    def cut(self, cutoff: int | None) -> Judgements:
        """Return the same with the judged hits among the first ``cutoff`` only; None: all."""
        if cutoff is None:
            return self
        inside = self.hit_rank < cutoff
        hits = self.hit_query[inside], self.hit_rank[inside], self.hit_grade[inside]
        return Judgements(*hits, *self[3:])


def relevant_counts(judgements: Judgements, level: int) -> Ints:
    """Return how many relevant documents each query has in the qrels."""
    relevant = judgements.judged_query[judgements.judged_grade >= level]
    return np.bincount(relevant, minlength=len(judgements.retrieved))


def relevant_and_not(
    judgements: Judgements, level: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which judged hits are relevant, and which are judged not to be."""
    grade = judgements.hit_grade
    return grade >= level, (grade >= 0) & (grade < level)


def counts_before(judgements: Judgements, counted: NDArray[np.bool_]) -> Ints:
    """Return for each judged hit how many of ``counted`` are above it in its query's list."""
    so_far: Ints = np.cumsum(counted) - counted
    sizes = np.bincount(judgements.hit_query, minlength=len(judgements.retrieved))
    first = np.cumsum(sizes) - sizes
    padded = np.append(so_far, 0)  # a query without hits at the end starts after the last one
    above: Ints = so_far - padded[first][judgements.hit_query]
    return above


def places_in_groups(sizes: Ints) -> Ints:
    """Return 0, 1, ... within each of the groups of these sizes."""
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def sums_by_query(query: Ints, weights: NDArray[Any], queries: int) -> Values:
    """Return each query's sum of ``weights``."""
    return np.asarray(np.bincount(query, weights=weights, minlength=queries), dtype=np.float64)


def ratio_or_zero(part: NDArray[Any], total: NDArray[Any]) -> Values:
    """Return ``part / total``, 0 where the total is 0."""
    values = np.zeros(len(part))
    np.divide(part, total, out=values, where=total > 0)
    return values
