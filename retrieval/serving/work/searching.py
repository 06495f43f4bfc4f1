"""Searches queries of several requests in one run of a pipeline."""

from __future__ import annotations

import re
import time
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.text import LONGEST_WORD, WORD, best_part, matches
from sluice.retrieval.pipelines.asking import filled
from sluice.retrieval.pipelines.hit import Hit, TokenMatch
from sluice.retrieval.pipelines.rerank import OUT_OF_TIME
from sluice.retrieval.pipelines.search import documents_in, one_state, time_limit
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.pipelines.tracing import Span, keeping_passages
from sluice.retrieval.retrievers.pipeline_explanation import DocumentPath, explain_pipeline
from sluice.retrieval.serving.shapes.search import (
    Explanation,
    HitShape,
    MatchShape,
    MetSnippet,
    MetWord,
    PassageShape,
    PathShape,
    PlaceShape,
    SearchAnswer,
    SearchRequest,
    Snippet,
    StageTime,
    StepShape,
)
from sluice.retrieval.stages.abstain import NO_ANSWER

SNIPPET = 320  # characters of a snippet
QUICK_HITS = 100  # of a request, that are made into an answer in some milliseconds
QUICK_TEXT = 20_000  # characters that snippets of them are made of, in as little time


class Found(NamedTuple):
    """The hits of a query; ``unscored`` are the candidates that rerankers had no time for.

    ``partial`` names the shards whose documents were not searched. ``doubt`` is the confidence for
    want of which the pipeline answers nothing.
    """

    hits: list[Hit]
    unscored: int
    stages: list[StageTime]
    together: int
    partial: tuple[str, ...] = ()
    doubt: float | None = None


def search_all(
    stage: Stage, queries: Sequence[str], k: int, ends: float | None = None
) -> list[Found]:
    """Return what a pipeline finds for each query, all searched together.

    Rerankers stop at ``ends`` (``time.perf_counter``). Where hits are named by passages, queries
    are searched one by one, as ``Stage.search`` does.
    """
    if stage.names_passages and len(queries) > 1:
        return [found for query in queries for found in search_all(stage, [query], k, ends)]
    texts = {str(place): query for place, query in enumerate(queries)}
    with ExitStack() as stack:
        if ends is not None:
            stack.enter_context(time_limit(ends - time.perf_counter()))
        stack.enter_context(one_state())
        spans = stack.enter_context(keeping_passages(True))
        run = stage.run(texts, None, k)
        documents = stage.documents
        times = [_time(span) for span in _working(spans[-1])]
        unscored = _unscored(spans[-1])
        doubts = ChainMap(*(each.facts.get(NO_ANSWER, {}) for each in spans[-1].walk()))
        rankings = {place: run[place][:k] for place in texts}
        # Once for all queries: looking up a document costs less where there are many.
        shown = list(dict.fromkeys(doc for each in rankings.values() for doc in each.doc_ids))
        by_id = dict(zip(shown, documents_in(documents, shown), strict=True))
        answers = []
        for place, query in texts.items():
            ids = list(rankings[place].doc_ids)
            passages = [None] * len(ids)
            if stage.names_passages:
                passages = stage.passages_of(query, ids, spans[-1])  # type: ignore[assignment]
            hits = [
                Hit(doc_id, score, found.text, found.title, found.metadata, passage)
                for (doc_id, score), passage in zip(rankings[place], passages, strict=True)
                for found in [by_id[doc_id]]
            ]
            missing, doubt = unscored.get(place, 0), None if hits else doubts.get(place)
            answers.append(Found(hits, missing, times, len(queries), run.partial, doubt))
    return answers


def answer(
    request: SearchRequest, query: str, pipeline: str, found: Found, state: int
) -> SearchAnswer:
    """Return the hits of a query, or those that fill its budget, with the fields asked for."""
    notes, hits, fills = list[str](), found.hits, None
    if request.budget_tokens is not None:
        most = request.k if "k" in request.model_fields_set else None
        hits = fills = filled(query, hits, request.budget_tokens, most)
        if fills.repetitions:
            notes.append(f"left out: {', '.join(fills.repetitions)}")
    if found.unscored:
        notes.append(
            f"the deadline left {found.unscored:,} candidates unscored by a reranker; they keep "
            "the order that they had"
        )
    if found.partial:
        notes.append(f"without the documents of {', '.join(found.partial)}")
    if found.doubt is not None:
        notes.append(f"no document settles it: the confidence, {found.doubt:.3g}, is too low")
    return SearchAnswer(
        query=query,
        pipeline=pipeline,
        answer=None if found.doubt is None else "none",
        hits=[_hit(rank, hit, request, query) for rank, hit in enumerate(hits, 1)],
        complete=not (found.unscored or found.partial),
        note="; ".join(notes) or None,
        tokens=None if fills is None else fills.tokens,
        left_out=None if fills is None else len(fills.dropped),
        partial=list(found.partial),
        stages=found.stages,
        together=found.together,
        state=state,
    )


def is_quick(request: SearchRequest, found: Sequence[Found]) -> bool:
    """Return whether the answers to a request take some milliseconds at most."""
    hits = [hit for each in found for hit in each.hits]
    if request.budget_tokens is not None:
        return False
    text = sum(len(hit.text) for hit in hits) if request.highlight else 0
    return len(hits) <= QUICK_HITS and text <= QUICK_TEXT


def snippet_of(text: str, query: str, length: int = SNIPPET) -> Snippet:
    """Return the part of a text with most words of a query, and where they stand in it."""
    line = " ".join(text.split())
    places = matches(line, query)
    first, last = best_part(line, places, length)
    ahead = "... " if first else ""
    marks = [
        (start - first + len(ahead), end - first + len(ahead))
        for start, end, _ in places
        if first <= start and end <= last
    ]
    return Snippet(
        text=ahead + line[first:last] + (" ..." if last < len(line) else ""), marks=marks
    )


def _hit(rank: int, hit: Hit, request: SearchRequest, query: str) -> HitShape:
    shown = set(request.fields)
    if request.budget_tokens is not None and "fields" not in request.model_fields_set:
        shown.discard("text")
    passage = hit.passage if "passage" in shown else None
    snippet = None
    if request.highlight:
        snippet = snippet_of(hit.text if hit.passage is None else hit.passage.text, query)
    return HitShape(
        id=hit.doc_id,
        rank=rank,
        score=float(hit.score),
        title=hit.title if "title" in shown else None,
        text=hit.text if "text" in shown else None,
        metadata=dict(hit.metadata) if "metadata" in shown else None,
        passage=None if passage is None else PassageShape(**passage._asdict()),
        snippet=snippet,
    )


def _working(span: Span) -> Iterator[Span]:
    """Yield the spans of stages that do something: not those that only wrap another."""
    for part in span.inner:
        yield from _working(part)
    if not span.inner or span.inner[-1].result is not span.result:
        yield span


def _time(span: Span) -> StageTime:
    most = 0 if span.result is None else max(map(len, span.result.values()), default=0)
    milliseconds = round(span.own_seconds * 1000, 3)
    return StageTime(name=span.stage.name, milliseconds=milliseconds, documents=most)


def _unscored(span: Span) -> dict[str, int]:
    """Return for each query how many candidates rerankers had no time for."""
    counts: dict[str, int] = {}
    for each in span.walk():
        for query, count in each.facts.get(OUT_OF_TIME, {}).items():
            counts[query] = counts.get(query, 0) + count
    return counts


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
