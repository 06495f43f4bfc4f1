"""Breaks a run down by grade: how much of each it finds, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.evaluation.table import Table
from sluice.retrieval.runs.run import Ranking, Run

CUTOFFS = (10, 100)


@dataclass(frozen=True, slots=True)
class GradeFigures:
    """How a run ranks the documents of one grade, for some figures by cut-off.

    ``recall[k]`` is the mean over ``queries``, those that have a document of the grade, of the
    share of its documents in the first k. ``mean_rank`` is that of the ``found`` documents of all
    queries, from 1, None where there is none. ``share[k]`` is the grade's part of all places to k.
    """

    grade: int
    judged: int
    queries: int
    found: int
    recall: Mapping[int, float]
    mean_rank: float | None
    share: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class GradeBreakdown:
    """A run grade by grade, the highest first; ``unjudged[k]`` is the share of unjudged places."""

    name: str
    grades: tuple[GradeFigures, ...]
    unjudged: Mapping[int, float]

    def table(self) -> Table:
        """Return the figures as a table: a row for each grade, and one for what is unjudged."""
        cutoffs = list(self.unjudged)
        columns = {"judged": ",d", "found": ",d", "mean rank": ",.1f"}
        columns |= {f"R@{k}": ".4f" for k in cutoffs} | {f"share@{k}": ".4f" for k in cutoffs}
        table = Table(columns=columns)
        for each in self.grades:
            row: dict[str, Any] = {
                "judged": each.judged, "found": each.found, "mean rank": each.mean_rank
            }  # fmt: skip
            row |= {f"R@{k}": each.recall[k] for k in cutoffs}
            row |= {f"share@{k}": each.share[k] for k in cutoffs}
            table.rows[f"grade {each.grade}"] = row
        table.rows["unjudged"] = {f"share@{k}": self.unjudged[k] for k in cutoffs}
        return table


def grade_breakdown(
    run: Run | Mapping[str, Any], qrels: Qrels, cutoffs: Sequence[int] = CUTOFFS
) -> GradeBreakdown:
    """Return what a run finds of each grade, over the queries with judgements.

    A query that the run lacks finds nothing; it has no places. ``DataError`` where there are no
    judgements, ``ConfigError`` for a cut-off below 1.
    """
    depths = [whole_number(k, "a cut-off", 1) for k in cutoffs]
    if not depths:
        raise ConfigError("no cut-offs; expected some, as in [10, 100]")
    opened = run if isinstance(run, Run) else Run(run)
    queries = [query for query, grades in qrels.items() if grades]
    if not queries:
        raise DataError("the qrels hold no judgements: there is nothing to break down")
    levels = sorted({grade for query in queries for grade in qrels[query].values()}, reverse=True)
    ranks = {level: [_ranks(opened, qrels, query, level) for query in queries] for level in levels}
    lengths = np.array([len(opened[query]) if query in opened else 0 for query in queries])
    places = {k: int(np.minimum(lengths, k).sum()) for k in depths}
    figures = tuple(_figures(level, ranks[level], places) for level in levels)
    return GradeBreakdown(
        opened.name,
        figures,
        {k: 1.0 - sum(each.share[k] for each in figures) if places[k] else 0.0 for k in depths},
    )


def _ranks(run: Run, qrels: Qrels, query: str, level: int) -> NDArray[np.float64]:
    """Return the rank of each of a query's documents of a grade, from 1; infinity if not found."""
    place = {doc: rank for rank, doc in enumerate(run.get(query, Ranking([], [])).doc_ids, 1)}
    judged = [doc for doc, grade in qrels[query].items() if grade == level]
    return np.array([place.get(doc, np.inf) for doc in judged], np.float64)


def _figures(
    grade: int, ranks: Sequence[NDArray[np.float64]], places: Mapping[int, int]
) -> GradeFigures:
    having = [own for own in ranks if len(own)]
    together = np.concatenate(having)
    ranked = together[np.isfinite(together)]
    return GradeFigures(
        grade,
        len(together),
        len(having),
        len(ranked),
        {k: float(np.mean([np.mean(own <= k) for own in having])) for k in places},
        float(ranked.mean()) if len(ranked) else None,
        {k: float((ranked <= k).sum()) / count if count else 0.0 for k, count in places.items()},
    )
