"""ranx: runs and judgements to its classes and back.

ranx orders equal scores as its sort happens to leave them. A run of ours goes there with strictly
decreasing scores, as ``Run.save`` writes them, so that it keeps our order. A run of theirs is put
in trec_eval's order (``Run``), its scores rounded from float64 to float32.
"""

from __future__ import annotations

from typing import Any

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.runs.run import Run


def to_ranx_run(run: Run) -> Any:
    """Return a ``ranx.Run`` of the run's name and order.

    Queries without hits are left out, ranx takes none; its ``evaluate(..., make_comparable=True)``
    scores them 0. Raises ``DataError`` for a run without any hit.
    """
    import ranx

    lists = {query: hits for query, hits in run.strictly_decreasing().items() if hits}
    if not lists:
        raise DataError(f"run {run.name!r}: no query has a hit, and ranx takes no empty run")
    return ranx.Run(lists, name=run.name)


def from_ranx_run(theirs: Any) -> Run:
    """Return a ``ranx.Run`` as a run, named as it is, or ``run``."""
    return Run(theirs.to_dict(), name=theirs.name or "run")


def to_ranx_qrels(qrels: Qrels) -> Any:
    """Return ``ranx.Qrels``; queries without judgements are left out, ranx takes none."""
    import ranx

    judged = {query: dict(grades) for query, grades in qrels.items() if grades}
    if not judged:
        raise DataError("the qrels hold no judgements, and ranx takes no empty ones")
    return ranx.Qrels(judged)


def from_ranx_qrels(theirs: Any) -> dict[str, dict[str, int]]:
    """Return ``ranx.Qrels`` as ``{query id: {document id: grade}}``."""
    return {
        query: {doc: int(grade) for doc, grade in grades.items()}
        for query, grades in theirs.to_dict().items()
    }
