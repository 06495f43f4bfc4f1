"""The queries that lost most, and the stage of the candidate that lost their best document."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log2
from typing import Final

from sluice.encoders.foundation.errors import SluiceError
from sluice.retrieval.retrievers.pipeline_explanation import DocumentPath, explain_pipeline
from sluice.retrieval.studies.gate.system import NO_HITS, System
from sluice.retrieval.studies.report.queries import cut

log = logging.getLogger("sluice")

SHOWN: Final = 5  # queries
STEP: Final = 24  # characters of a stage's name


@dataclass(frozen=True, slots=True)
class LostQuery:
    """A query before and after; a rank is None where it is unknown, 0 where there is none.

    ``stages`` says what the candidate's stages did with the relevant document that lost most; empty
    where they cannot be run.
    """

    query: str
    text: str
    values: tuple[float, float]
    documents: tuple[tuple[str, ...], tuple[str, ...]]
    first_relevant: tuple[int | None, int | None]
    stages: str = ""


def lost_queries(before: System, after: System, queries: Sequence[str]) -> Iterator[LostQuery]:
    """Yield the queries that lost most by the first measure, the largest loss first."""
    measure = next(iter(after.values), "")
    values = {q: (before.values[measure][q], after.values[measure][q]) for q in queries}
    most = sorted(queries, key=lambda q: values[q][1] - values[q][0])[:SHOWN]
    lost = [query for query in most if values[query][1] < values[query][0]]
    stages = _stages(before, after, lost)
    for query in lost:
        yield LostQuery(
            query, {**before.texts, **after.texts}.get(query, ""), values[query],
            (tuple(before.first.get(query, ())), tuple(after.first.get(query, ()))),
            (before.first_relevant(query), after.first_relevant(query)), stages.get(query, ""),
        )  # fmt: skip


def _stages(before: System, after: System, queries: Sequence[str]) -> dict[str, str]:
    """Return by query what happened to a document; without what cannot be opened or run."""
    stages: dict[str, str] = {}
    try:
        stage = None if after.stage is None or not queries else after.stage()
        for query in queries if stage is not None else ():
            doc_id = _missed(before, after, query)
            if stage is not None and doc_id is not None and query in after.texts:
                path = explain_pipeline(stage, after.texts[query], doc_ids=[doc_id]).documents[0]
                stages[query] = lost_at(path)
    except (SluiceError, ImportError, OSError) as error:
        log.warning("%s: its stages are not followed: %s", after.where, error)
    return stages


def _missed(before: System, after: System, query: str) -> str | None:
    """Return the relevant document that lost most: of its grade, discounted by rank as in DCG."""
    known = before.first.get(query, ()) if before.run is None else _ids(before, query)
    old, new = ({doc: 1 / log2(1 + rank) for rank, doc in enumerate(ids, 1)}
                for ids in (known, _ids(after, query)))  # fmt: skip
    grades = (after.qrels or {}).get(query, {})
    losses = {
        doc: grade * (old.get(doc, 0.0) - new.get(doc, 0.0))
        for doc, grade in grades.items()
        if grade >= after.level
    }
    return max(losses, key=losses.__getitem__, default=None)


def _ids(system: System, query: str) -> Sequence[str]:
    return () if system.run is None else system.run.get(query, NO_HITS).doc_ids


def lost_at(path: DocumentPath) -> str:
    """Say which stage lost a document or moved it down furthest, and its rank behind each."""
    ranks = [(cut(place.step, STEP), place.rank) for place in path.places]
    if not path.found_by:
        return f"{path.doc_id} not found by {', '.join(dict.fromkeys(step for step, _ in ranks))}"
    shown = ", ".join(f"{step} {rank or 'none'}" for step, rank in ranks)
    if path.rank is None:
        last = max(place for place, (_, rank) in enumerate(ranks) if rank is not None)
        return f"{path.doc_id} lost by {ranks[last + 1][0]} ({shown})"
    if path.decided is not None and path.decided[2] > path.decided[1]:
        name, rank, then = path.decided
        return f"{path.doc_id} moved down by {cut(name, STEP)}, {rank} to {then} ({shown})"
    return f"{path.doc_id} {shown}"
