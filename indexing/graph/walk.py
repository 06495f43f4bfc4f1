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
    room = settings.most(len(graph), best.k)
    frontier = order[: settings.begins_with(len(graph), best.k)]
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
    _fill(score, order, seen, best, allowed)


def best_first_walk(
    score: Score,
    graph: Neighbours,
    order: Rows,
    settings: SearchSettings,
    best: Best,
    allowed: Mask | None,
) -> None:
    """Give ``best`` the rows that a best-first walk finds; every row is scored once at most.

    It begins with the first rows of ``order``. Then the neighbours of the best row that was not
    expanded before are scored, as long as there is one among the ``candidates`` best scored so far
    (or k, if that is more), and ``budget`` is not spent. (Malkov and Yashunin 2018, algorithm 2.)
    Rows that ``allowed`` excludes are walked through without being hits. Where fewer than k hits
    are found, further rows of ``order`` are scored.
    """
    seen = np.zeros(len(graph), np.bool_)
    room = settings.most(len(graph), best.k)
    width = max(settings.candidate_count(len(graph)), best.k)
    rows = order[: settings.begins_with(len(graph), best.k)]
    near: Rows = np.zeros(0, np.int64)
    scores: Scores = np.zeros(0, np.float32)
    open_rows = np.zeros(0, np.bool_)
    while True:
        rows = rows[: room - best.visited]
        if len(rows):
            seen[rows] = True
            made = score(rows)
            best.take(rows, made, allowed)
            near, scores = np.concatenate([near, rows]), np.concatenate([scores, made])
            open_rows = np.concatenate([open_rows, np.ones(len(rows), np.bool_)])
            first = np.lexsort((near, -scores))[:width]
            near, scores, open_rows = near[first], scores[first], open_rows[first]
        if not open_rows.any() or best.visited >= room:
            break
        place = int(np.argmax(open_rows))
        open_rows[place] = False
        reached = graph.of(near[place : place + 1])
        rows = reached[~seen[reached]]
    _fill(score, order, seen, best, allowed)


def _fill(score: Score, order: Rows, seen: Mask, best: Best, allowed: Mask | None) -> None:
    """Score further rows of ``order`` where fewer than k hits are found."""
    if len(best.rows) < best.k:
        left = order[~seen[order]]
        left = left if allowed is None else left[allowed[left]]
        left = left[: best.k - len(best.rows)]
        if len(left):
            best.take(left, score(left), allowed)
