"""Follows a query's documents through a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sluice.retrieval.documents.document import Document
from sluice.retrieval.pipelines.searchable import documents_in
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.pipeline_explanation import DocumentPath, explain_pipeline
from sluice.retrieval.serving.shapes.search import (
    Explanation,
    MatchShape,
    PathShape,
    PlaceShape,
    StepShape,
)
from sluice.retrieval.serving.tasks.met_words import met_snippet

Facts = Mapping[str, Any]


def explained(
    stage: Stage, query: str, k: int, ids: Sequence[str] | None, pipeline: str, state: int
) -> Explanation:
    """Return what each stage did with a query, and where its documents moved."""
    found = explain_pipeline(stage, query, k, doc_ids=ids)
    facts = found.as_dict()
    steps = [StepShape(**{**step, "facts": _plain(step["facts"])}) for step in facts["steps"]]
    texts = _documents(stage, found.documents)
    paths = [
        _path(document, path, texts.get(path.doc_id))
        for document, path in zip(facts["documents"], found.documents, strict=True)
    ]
    return Explanation(
        query=query,
        pipeline=pipeline,
        milliseconds=facts["milliseconds"],
        steps=steps,
        documents=paths,
        state=state,
    )


def _documents(stage: Stage, paths: Sequence[DocumentPath]) -> dict[str, Document]:
    """Return the documents whose tokens met those of the query, where their texts are stored."""
    ids = [path.doc_id for path in paths if path.matches]
    documents = stage.documents
    if not ids or documents is None:
        return {}
    return {each.id: each for each in documents_in(documents, ids)}


def _path(document: Facts, path: DocumentPath, stored: Document | None) -> PathShape:
    decided = document["decided"]
    matches = list(path.matches.values())
    met = met_snippet(stored, matches[-1]) if matches and stored is not None else None
    return PathShape.model_validate(
        {
            "id": document["doc_id"],
            "rank": document["rank"],
            "score": document["score"],
            "places": [PlaceShape(**place) for place in document["places"]],
            "found_by": document["found_by"],
            "decided": None if decided is None else tuple(decided),
            "terms": _plain(document["terms"]),
            "matches": {
                name: [
                    MatchShape(
                        query_token=match.query_token,
                        document_token=match.document_token,
                        similarity=float(match.similarity),
                        in_query=match.in_query,
                    )
                    for match in of_stage
                ]
                for name, of_stage in path.matches.items()
            },
            "met": met,
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
