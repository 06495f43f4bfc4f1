"""Runs and judgements as those of ir_measures and ranx, and back.

Both order equal scores differently. A run of ours goes there with strictly decreasing scores, as
``Run.save`` writes them, so that it keeps our order. A run of theirs is put in trec_eval's order
(``Run``), its scores rounded to float32.

ir-measures is an optional package: ``pip install 'sluice-ir[interop]'``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sluice.encoders.foundation.errors import DataError, MissingPackageError
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.runs.run import Run


def to_scored_docs(run: Run) -> Iterator[Any]:
    """Yield an ``ir_measures.ScoredDoc`` for every hit, query after query, best first."""
    scored_doc = _ir_measures().ScoredDoc
    for query, hits in run.strictly_decreasing().items():
        yield from (scored_doc(query, doc_id, score) for doc_id, score in hits.items())


def from_scored_docs(records: Iterable[Any], *, name: str = "run") -> Run:
    """Return records with ``query_id``, ``doc_id`` and ``score``, in any order, as a run."""
    lists: dict[str, list[tuple[str, float]]] = {}
    for record in records:
        lists.setdefault(record.query_id, []).append((record.doc_id, record.score))
    return Run(lists, name=name)


def to_ir_qrels(qrels: Qrels) -> Iterator[Any]:
    """Yield an ``ir_measures.Qrel`` for every judgement."""
    qrel = _ir_measures().Qrel
    for query, grades in qrels.items():
        yield from (qrel(query, doc_id, int(grade)) for doc_id, grade in grades.items())


def from_ir_qrels(records: Iterable[Any]) -> dict[str, dict[str, int]]:
    """Return records as qrels; a document judged twice, as for subtopics, is a ``DataError``."""
    qrels: dict[str, dict[str, int]] = {}
    for record in records:
        grades = qrels.setdefault(record.query_id, {})
        if record.doc_id in grades:
            raise DataError(f"qrels: {record.query_id!r} judges {record.doc_id!r} twice")
        grades[record.doc_id] = int(record.relevance)
    return qrels


def _ir_measures() -> Any:
    try:
        import ir_measures
    except ImportError:
        raise MissingPackageError("ir-measures", "interop", "records of ir_measures") from None
    return ir_measures


def to_ranx_run(run: Run) -> Any:
    """Return a ``ranx.Run`` of the run's name and order.

    Queries without hits, which ranx refuses, are left out; its
    ``evaluate(..., make_comparable=True)`` scores them 0. Raises ``DataError`` for a run without
    hits.
    """
    import ranx

    lists = {query: hits for query, hits in run.strictly_decreasing().items() if hits}
    if not lists:
        raise DataError(f"run {run.name!r}: no query has a hit, and ranx refuses an empty run")
    return ranx.Run(lists, name=run.name)


def from_ranx_run(theirs: Any) -> Run:
    """Return a ``ranx.Run`` as a run, named as it is, or ``run``."""
    return Run(theirs.to_dict(), name=theirs.name or "run")


def to_ranx_qrels(qrels: Qrels) -> Any:
    """Return ``ranx.Qrels``; queries without judgements are left out, ranx refuses them."""
    import ranx

    judged = {query: dict(grades) for query, grades in qrels.items() if grades}
    if not judged:
        raise DataError("the qrels hold no judgements, and ranx refuses empty ones")
    return ranx.Qrels(judged)


def from_ranx_qrels(theirs: Any) -> dict[str, dict[str, int]]:
    """Return ``ranx.Qrels`` as ``{query id: {document id: grade}}``."""
    return {
        query: {doc: int(grade) for doc, grade in grades.items()}
        for query, grades in theirs.to_dict().items()
    }
