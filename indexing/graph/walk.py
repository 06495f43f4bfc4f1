"""The greedy walk through a graph: from many entry points to the neighbours of the best."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sluice.indexing.graph.best import Best, Scores
from sluice.indexing.graph.neighbours import Neighbours
from sluice.indexing.graph.settings import SearchSettings
from sluice.indexing.hits import best_first
from sluice.indexing.live_rows import Mask, Rows

Score = Callable[[Rows], Scores]  # of rows, each once


def walk(
    score: Score,
    graph: Neighbours,
    order: Rows,
    settings: SearchSettings,
    best: Best,
    allowed: Mask | None,
) -> None:
    """Give ``best`` the rows that a walk finds; every row is scored once at most.

    It begins with the first rows of ``order``. Then, ``iterations`` times at most, the neighbours
    of the ``candidates`` best of those scored last are scored, unless they were before. It ends
    where none are left, where ``budget`` rows are scored, or, with ``early_stop``, where a step
    finds none of the best k. (Killingback, Zeng and Zamani 2025, arXiv 2502.05364, section on
    efficient search.) Rows that ``allowed`` excludes are walked through without being hits. Where
    fewer than k hits are found, further rows of ``order`` are scored.
    """
    seen = np.zeros(len(graph), np.bool_)
    room = len(graph) if settings.budget is None else max(settings.budget, best.k)
    frontier = order[: max(settings.entry_count(len(graph)), best.k)]
    for _ in range(1 + settings.iterations):
        frontier = frontier[: room - best.visited]
        if not len(frontier):
            break
        seen[frontier] = True
        scores = score(frontier)
        if not best.take(frontier, scores, allowed) and settings.early_stop:
            break
        near, _ = best_first(frontier, scores, settings.candidate_count(len(graph)))
        reached = graph.of(near)
        frontier = reached[~seen[reached]]
    if len(best.rows) < best.k:
        left = order[~seen[order]]
        left = left if allowed is None else left[allowed[left]]
        left = left[: best.k - len(best.rows)]
        if len(left):
            best.take(left, score(left), allowed)
