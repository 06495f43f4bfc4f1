"""Follows a query's documents through a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.pipeline_explanation import explain_pipeline
from sluice.retrieval.serving.shapes.search import Explanation, PathShape, PlaceShape, StepShape

Facts = Mapping[str, Any]


def explained(
    stage: Stage, query: str, k: int, ids: Sequence[str] | None, pipeline: str, state: int
) -> Explanation:
    """Return what each stage did with a query, and where its documents moved."""
    facts = explain_pipeline(stage, query, k, doc_ids=ids).as_dict()
    steps = [StepShape(**{**step, "facts": _plain(step["facts"])}) for step in facts["steps"]]
    paths = [_path(document) for document in facts["documents"]]
    return Explanation(
        query=query,
        pipeline=pipeline,
        milliseconds=facts["milliseconds"],
        steps=steps,
        documents=paths,
        state=state,
    )


def _path(document: Facts) -> PathShape:
    decided = document["decided"]
    return PathShape.model_validate(
        {
            "id": document["doc_id"],
            "rank": document["rank"],
            "score": document["score"],
            "places": [PlaceShape(**place) for place in document["places"]],
            "found_by": document["found_by"],
            "decided": None if decided is None else tuple(decided),
            "terms": _plain(document["terms"]),
        }
    )


def _plain(value: Any) -> Any:
    """Return a stage's facts as JSON has them; what JSON has no form for is its text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
