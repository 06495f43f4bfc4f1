"""Follows a query's documents through a pipeline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.snippet import LONGEST_WORD, WORD, best_part
from sluice.retrieval.pipelines.hit import TokenMatch
from sluice.retrieval.pipelines.search import documents_in
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.pipeline_explanation import DocumentPath, explain_pipeline
from sluice.retrieval.serving.shapes.search import (
    Explanation,
    MatchShape,
    MetSnippet,
    MetWord,
    PathShape,
    PlaceShape,
    StepShape,
)

SNIPPET = 320  # characters, as many as of a snippet by words
UNSPACED = 0x2E80  # the first letter of scripts that put no spaces between words
SPACE = re.compile(r"\s")


def met_snippet(document: Document, matches: Sequence[TokenMatch]) -> MetSnippet | None:
    """Return the part of a document's text with most words that the query's own tokens met.

    None where no such word is in the text: in the title alone, or the encoder does not tell where
    its tokens stand. A token that is part of a word stands for the word.
    """
    text = SPACE.sub(" ", document.text)
    met: dict[tuple[int, int], list[TokenMatch]] = {}
    for match in matches:
        if not match.in_query:
            continue
        places = {_word(text, *document.own_characters(*span)) for span in match.spans}
        for start, end in sorted(places):
            if start < end:
                met.setdefault((start, end), []).append(match)
    if not met:
        return None
    first, last = best_part(text, [(*place, str(place)) for place in sorted(met)], SNIPPET)
    ahead = "... " if first else ""
    words = [
        MetWord(
            start=start - first + len(ahead),
            end=end - first + len(ahead),
            adds=sum(float(match.similarity) for match in of_word),
            tokens=[match.query_token for match in of_word],
        )
        for (start, end), of_word in sorted(met.items())
        if first <= start and end <= last
    ]
    behind = " ..." if last < len(text) else ""
    return MetSnippet(text=ahead + text[first:last] + behind, words=words)


def _word(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the word around the characters of a token; the characters alone if it is none.

    So too in a word too long to be one, such as base64.
    """
    if start >= end or ord(text[start]) >= UNSPACED or WORD.match(text, start, start + 1) is None:
        return start, end
    first, least = start, max(0, start - LONGEST_WORD)
    while first > least and WORD.match(text, first - 1, first):
        first -= 1
    found = WORD.match(text, start, first + LONGEST_WORD + 1)
    last = max(end, found.end()) if found else end
    return (start, end) if last - first > LONGEST_WORD else (first, last)


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
