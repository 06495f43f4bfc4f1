"""Sorts failed queries by the stage that lost the relevant documents."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.runs.run import Ranking, Run

TOP = 10  # ranks that a reader looks at
FEW = 2  # judged documents of a query
RERANKED = 100  # documents: the default depth of Rerank
_DEPTH = re.compile(r"\bdepth\s*=\s*(\d+)")
_FEEDBACK = re.compile(r"\s*(rm3|prf|normalised)\s*\(")  # they search again
_FITTED = re.compile(r"\s*fitted\s*\(")
_EMPTY = Ranking([], [])


class Judged(NamedTuple):
    """One query's run against its judgements: ``grades[rank]`` is -1 if unjudged."""

    grades: NDArray[np.int64]
    relevant: int  # documents with a grade of 1 or more, retrieved or not


def judged(run: Run, qrels: Qrels, query: str, level: int = 1) -> Judged:
    """Look up the grade of every hit of a query."""
    grades = qrels[query]
    ids = run.get(query, _EMPTY).doc_ids
    ranked = np.array([grades.get(doc_id, -1) for doc_id in ids], dtype=np.int64)
    return Judged(ranked, sum(grade >= level for grade in grades.values()))


def judges_few(qrels: Qrels) -> bool:
    """Return whether only a positive or two of each query are judged, as in MS MARCO.

    An unjudged first document then says nothing.
    """
    counts = [len(grades) for grades in qrels.values() if grades]
    graded = any(grade <= 0 for grades in qrels.values() for grade in grades.values())
    return bool(counts) and not graded and float(np.median(counts)) <= FEW


def reranked_depth(
    pipeline: str, pipelines: Mapping[str, str], chosen: Mapping[str, str] | None = None
) -> int | None:
    """Return the depth of a pipeline's last stage, None if it is not a reranker or of depth 0.

    Names of other pipelines are resolved. ``chosen`` has by pipeline what was fitted for its last
    ``fitted(...)``, as ``cross(depth=20)``.
    """
    seen, name = set[str](), ""
    while pipeline in pipelines and pipeline not in seen:
        seen.add(pipeline)
        name, pipeline = pipeline, pipelines[pipeline]
    _, arrow, last = pipeline.rpartition(">>")
    inside = last.count("(") != last.count(")")  # the arrow of a part, not of the pipeline
    if not arrow or inside or _FEEDBACK.match(last):
        return None
    if _FITTED.match(last):
        last = (chosen or {}).get(name, last)
    depth = _DEPTH.search(last)
    return (int(depth[1]) if depth else RERANKED) or None


def buckets(
    run: Run, qrels: Qrels, queries: list[str], depth: int | None, level: int = 1
) -> dict[str, list[int]]:
    """Return positions in ``queries`` by kind of failure; the first three kinds exclude each other.

    ``none``: no relevant document in the run. ``lost``: none in the first 10 although one is among
    the ``depth`` reranked documents (which the first stage returned). ``low``: none in the first 10
    although the run has one further down. ``unjudged``: the first document is unjudged; queries
    with the most unjudged documents in the first 10 come first. Queries without a relevant document
    (of ``level`` or more) can only be unjudged.
    """
    kinds: dict[str, list[int]] = {"none": [], "lost": [], "low": []}
    unjudged: list[tuple[int, int]] = []
    for place, query in enumerate(queries):
        grades, relevant = judged(run, qrels, query, level)
        if len(grades) and grades[0] < 0:
            unjudged.append((-int((grades[:TOP] < 0).sum()), place))
        if not relevant or (grades[:TOP] >= level).any():
            continue
        ranks = np.flatnonzero(grades >= level)
        if not len(ranks):
            kinds["none"].append(place)
        else:
            kinds["lost" if depth is not None and ranks[0] < depth else "low"].append(place)
    return {**kinds, "unjudged": [place for _, place in sorted(unjudged)]}
