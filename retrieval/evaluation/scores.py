"""Scores a run against judgements, with trec_eval's values, also grade by grade."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import plural, whole_number
from sluice.familiar import Familiar, renamed
from sluice.retrieval.evaluation.judgements import Judgements
from sluice.retrieval.evaluation.measures import (
    Measure,
    at_level,
    compute,
    depth_for,
    depth_of,
    over_queries,
    parse_measure,
)
from sluice.retrieval.evaluation.table import Table
from sluice.retrieval.runs.columns import RunColumns
from sluice.retrieval.runs.queries import Queries, SelfExcluding, as_queries
from sluice.retrieval.runs.run import Ranking, Run, check_unique

DEFAULT_MEASURES = ("nDCG@10", "R@100")  # as in YAML

Qrels = Mapping[str, Mapping[str, int]]  # query id -> {document id: grade}


@runtime_checkable
class Truth(Protocol):
    """A dataset: queries and their judgements."""

    @property
    def queries(self) -> Mapping[str, str]: ...  # noqa: D102

    @property
    def qrels(self) -> Qrels: ...  # noqa: D102


@runtime_checkable
class Searcher(Protocol):
    """Anything that answers queries with a run of ``k`` documents each."""

    def run(self, queries: Mapping[str, str], k: int) -> Run: ...  # noqa: D102


class Judged(NamedTuple):
    """Queries and their judgements, given one by one."""

    queries: Queries
    qrels: Qrels


class ByMeasure(dict[str, Any]):
    """Values under a measure's canonical text, found under any spelling of it."""

    def __missing__(self, key: str) -> Any:
        try:
            canonical = str(parse_measure(key))
        except ConfigError as error:
            raise KeyError(str(error)) from None
        if canonical == key or canonical not in self:
            raise KeyError(f"{key!r} was not computed; there are {', '.join(self)}")
        return self[canonical]


@dataclass(frozen=True, slots=True)
class Scores(Familiar):
    """How well a run does, by measure.

    ``mean`` and ``per_query`` are keyed by measure, in any spelling. Means are over the ``queries``
    with judgements (totals of ``NumRet``, ``NumRel`` and ``NumRelRet``, the geometric mean of
    ``GMAP``, whose values by query are logarithms); a query the run lacks scores 0, as one without
    hits, and is counted in ``missing``; queries of the run without judgements are left out and
    counted in ``ignored``.
    """

    mean: Mapping[str, float]
    per_query: Mapping[str, Mapping[str, float]]
    queries: int
    missing: int = 0
    ignored: int = 0

    def __getitem__(self, measure: str) -> float:
        """Return the mean of a measure, in any spelling."""
        return self.mean[measure]

    def to_dict(self) -> dict[str, Any]:
        """Return means and counts for JSON; per-query values stay in ``per_query``."""
        return {
            "measures": dict(self.mean),
            "queries": self.queries,
            "missing": self.missing,
            "ignored": self.ignored,
        }

    def __str__(self) -> str:
        width = max(map(len, self.mean), default=0)
        lines = [f"{name:<{width}}  {value:.4f}" for name, value in self.mean.items()]
        counts = plural(self.queries, "query")
        if self.missing:
            counts += f", {self.missing:,} of them missing in the run (scored 0)"
        if self.ignored:
            counts += f"; ignored: {plural(self.ignored, 'query')} of the run without judgements"
        return "\n".join([*lines, counts])


@renamed(system="run retriever pipeline", measures="metrics metric")
def evaluate(
    system: Searcher | Run | Mapping[str, Any],
    truth: Any = None,
    *others: Any,
    measures: Iterable[str | Measure] | None = None,
    queries: Any = None,
    qrels: Qrels | None = None,
    ignore_identical_ids: bool = False,
    level: int | None = None,
) -> Scores:
    """Score a run, or a pipeline that is run first, against judgements.

    ``truth`` is a dataset or its qrels: ``evaluate(run, qrels, measures)``. A pipeline needs the
    dataset, or queries and qrels: ``evaluate(pipeline, queries, qrels, measures)``. ``measures``,
    nDCG@10 and R@100 unless given, may be named as the others may. ``ignore_identical_ids``
    drops a hit whose id is the query's own, as BEIR does. ``level`` is the least grade that counts
    as relevant, by default the dataset's: see ``at_level``. Queries whose qrels hold
    no judgement at all do not exist, as in a qrels file. Raises ``ConfigError`` for an unknown
    measure and ``DataError`` if no query of the run has judgements, or shards were missing.
    """
    if others and (hasattr(others[0], "columns") or (others[0] and _is_qrels(others[0]))):
        queries, qrels, *others = truth, *others  # type: ignore[assignment]
    if len(others) > (measures is None):
        raise TypeError("evaluate: too many arguments; write: evaluate(run, qrels, measures)")
    wanted = next(iter(others), DEFAULT_MEASURES if measures is None else measures)
    if isinstance(truth, Run):
        raise ConfigError("evaluate: the run comes first; write: scores = evaluate(run, qrels)")
    if qrels is not None:
        qrels = _by_query(qrels)
        truth = qrels if queries is None else Judged(as_queries(queries), qrels)
    least = getattr(truth, "level", 1) if level is None else level
    parsed = at_level(_measures(wanted), least)
    qrels = _checked(truth.qrels if isinstance(truth, Truth) else _by_query(truth))
    run = _run_of(system, truth, qrels, parsed, ignore_identical_ids)
    run.check_whole()
    judged = [query for query, grades in qrels.items() if grades]
    missing = sum(query not in run for query in judged)
    if not judged:
        raise DataError("the qrels hold no judgements: there is nothing to score against")
    if missing == len(judged) and len(run):
        raise DataError(
            f"no query of {run.name!r} has judgements; the ids do not match (the run has "
            f"{next(iter(run))!r}, the qrels have {judged[0]!r}); is this the right qrels file?"
        )
    judgements = _judgements(run, qrels, judged, depth_of(parsed), ignore_identical_ids)
    values = {str(measure): compute(measure, judgements) for measure in parsed}
    return Scores(
        mean=ByMeasure({str(each): over_queries(each, values[str(each)]) for each in parsed}),
        per_query=ByMeasure(
            {name: dict(zip(judged, value.tolist(), strict=True)) for name, value in values.items()}
        ),
        queries=len(judged),
        missing=missing,
        ignored=len(run) - (len(judged) - missing),
    )


def _measures(measures: Iterable[str | Measure]) -> list[Measure]:
    texts = [measures] if isinstance(measures, str | Measure) else list(measures)
    if not texts:
        raise ConfigError("no measure is named; expected some, as in ['nDCG@10', 'R@100']")
    return list(dict.fromkeys(parse_measure(measure) for measure in texts))


def _run_of(
    system: Any,
    truth: Truth | Qrels,
    qrels: Qrels,
    measures: Sequence[Measure],
    ignore_identical_ids: bool,
) -> Run:
    if isinstance(system, Run):
        return system
    if isinstance(system, Mapping) or hasattr(system, "columns"):
        return Run(system)
    if not isinstance(system, Searcher):
        raise ConfigError(
            f"evaluate: {type(system).__name__}; expected a Run, a mapping or a pipeline"
        )
    if not isinstance(truth, Truth):
        raise ConfigError(
            "a pipeline is evaluated on a dataset, which has the queries, not on qrels alone; "
            "pass the dataset, or write: scores = evaluate(pipeline, queries, qrels)"
        )
    queries = {query: truth.queries[query] for query in qrels if query in truth.queries}
    depth = depth_for(measures)
    if ignore_identical_ids:  # retrievers leave the query out; others return one document more
        return system.run(SelfExcluding(queries), k=depth + 1)
    return system.run(queries, k=depth)


def _by_query(qrels: Any) -> Qrels:
    """Return qrels as a mapping; a frame has PyTerrier's columns qid, docno and label."""
    if not hasattr(qrels, "columns"):
        return qrels  # type: ignore[no-any-return]
    if missing := ", ".join({"qid", "docno", "label"} - set(qrels.columns)):
        raise DataError(f"qrels: no column {missing}; expected qid, docno, label")
    judgements: dict[str, dict[str, int]] = {}
    for query, name, grade in zip(qrels["qid"], qrels["docno"], qrels["label"], strict=True):
        judgements.setdefault(str(query), {})[str(name)] = int(grade)
    return judgements


def _is_qrels(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(g, Mapping) for g in value.values())


def _checked(qrels: Qrels) -> Qrels:
    if not _is_qrels(qrels):
        raise DataError(
            "expected qrels as {query id: {document id: grade}}; write: scores = evaluate(run, "
            "qrels), or evaluate(retriever, queries, qrels)"
        )
    return qrels


def _judgements(
    run: Run, qrels: Qrels, queries: list[str], depth: int | None, ignore_identical_ids: bool
) -> Judgements:
    counts = [len(qrels[query]) for query in queries]
    judged_query = np.repeat(np.arange(len(queries)), counts)
    grades = np.array([grade for query in queries for grade in qrels[query].values()])
    if grades.dtype.kind not in "iub" and not (
        grades.dtype.kind == "f" and bool((grades == np.floor(grades)).all())
    ):
        raise DataError(
            "qrels: a grade is not an integer; expected 0 for not relevant, 1 or more for relevant"
        )
    judged_grade = grades.astype(np.int64)
    if run.columns is not None and not ignore_identical_ids:
        hits = _column_hits(run.columns, qrels, queries, depth, judged_query, judged_grade)
    else:
        hits = _ranking_hits(run, qrels, queries, depth, ignore_identical_ids)
    query, rank, grade, retrieved = hits
    return Judgements(query, rank, grade, judged_query, judged_grade, retrieved)


Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def _ranking_hits(
    run: Run, qrels: Qrels, queries: list[str], depth: int | None, ignore_identical_ids: bool
) -> Columns:
    """Find the judged hits ranking by ranking: query place, rank, grade; and the hits' counts."""
    hits: list[tuple[int, int, int]] = []
    retrieved = np.zeros(len(queries), dtype=np.int64)
    empty = Ranking([], [])
    for place, query in enumerate(queries):
        doc_ids = list(run.get(query, empty).doc_ids)
        check_unique(query, doc_ids)
        if ignore_identical_ids and query in doc_ids:
            doc_ids.remove(query)
        retrieved[place] = len(doc_ids)
        grades = qrels[query]
        hits += [
            (place, rank, int(grades[doc_id]))
            for rank, doc_id in enumerate(doc_ids[:depth])
            if doc_id in grades
        ]
    table = np.array(hits, dtype=np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2], retrieved


def _column_hits(
    columns: RunColumns,
    qrels: Qrels,
    queries: list[str],
    depth: int | None,
    judged_query: NDArray[np.int64],
    judged_grade: NDArray[np.int64],
) -> Columns:
    """Find the judged hits of all queries by one join; documents are never decoded."""
    import pyarrow as pa
    import pyarrow.compute as pc

    codes = {doc_id: 0 for query in queries for doc_id in qrels[query]}
    for code, doc_id in enumerate(codes):
        codes[doc_id] = code
    judged_code = np.array([codes[doc_id] for query in queries for doc_id in qrels[query]])
    judged_key = judged_query * len(codes) + judged_code
    by_key = np.argsort(judged_key)
    judged_key = judged_key[by_key]

    places = {query: place for place, query in enumerate(queries)}
    place_of = np.array([places.get(query, -1) for query in columns.queries], dtype=np.int64)
    retrieved = np.zeros(len(queries), dtype=np.int64)
    judged_too = place_of >= 0
    retrieved[place_of[judged_too]] = np.diff(columns.starts)[judged_too]

    cut = columns if depth is None else columns.top(depth)
    known = pa.array(list(codes), cut.documents.type)
    code = pc.index_in(cut.documents, value_set=known)
    row = pc.indices_nonzero(code.is_valid()).to_numpy().astype(np.int64)
    owner = np.searchsorted(cut.starts, row, side="right") - 1
    query = place_of[owner]
    key = query * len(codes) + code.drop_null().to_numpy()
    match = np.minimum(np.searchsorted(judged_key, key), len(judged_key) - 1)
    hit = (query >= 0) & (judged_key[match] == key)
    query, rank = query[hit], (row - cut.starts[owner])[hit]
    grade = judged_grade[by_key[match[hit]]]
    order = np.argsort(query, kind="stable")  # rows of one query are in rank order already
    return query[order], rank[order], grade[order], retrieved


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
