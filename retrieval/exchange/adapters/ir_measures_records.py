"""ir_measures: runs and judgements to its records and back.

Its providers order equal scores differently. A run of ours goes there with strictly decreasing
scores, as ``Run.save`` writes them, so that all keep our order. Records that come back are put in
trec_eval's order (``Run``), their scores rounded to float32.

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
