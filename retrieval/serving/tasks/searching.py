"""Searches queries of several requests in one run of a pipeline."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from sluice.retrieval.documents.snippet import best_part, matches
from sluice.retrieval.pipelines.hit import Hit
from sluice.retrieval.pipelines.rerank import OUT_OF_TIME
from sluice.retrieval.pipelines.search import documents_in, one_state, time_limit
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.pipelines.tracing import Span, keeping_passages
from sluice.retrieval.serving.shapes.search import (
    HitShape,
    PassageShape,
    SearchAnswer,
    SearchRequest,
    Snippet,
    StageTime,
)

SNIPPET = 320  # characters of a snippet
QUICK_HITS = 100  # of a request, that are made into an answer in some milliseconds
QUICK_TEXT = 20_000  # characters that snippets of them are made of, in as little time


class Found(NamedTuple):
    """The hits of a query; ``unscored`` are the candidates that rerankers had no time for.

    ``partial`` names the shards whose documents were not searched.
    """

    hits: list[Hit]
    unscored: int
    stages: list[StageTime]
    together: int
    partial: tuple[str, ...] = ()


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
            answers.append(Found(hits, unscored.get(place, 0), times, len(queries), run.partial))
    return answers


def answer(
    request: SearchRequest, query: str, pipeline: str, found: Found, state: int
) -> SearchAnswer:
    """Return the hits of a query with the fields that were asked for."""
    notes = []
    if found.unscored:
        notes.append(
            f"the deadline left {found.unscored:,} candidates unscored by a reranker; they keep "
            "the order that they had"
        )
    if found.partial:
        notes.append(f"without the documents of {', '.join(found.partial)}")
    return SearchAnswer(
        query=query,
        pipeline=pipeline,
        hits=[_hit(rank, hit, request, query) for rank, hit in enumerate(found.hits, 1)],
        complete=not (found.unscored or found.partial),
        note="; ".join(notes) or None,
        partial=list(found.partial),
        stages=found.stages,
        together=found.together,
        state=state,
    )


def is_quick(request: SearchRequest, found: Sequence[Found]) -> bool:
    """Return whether the answers to a request take some milliseconds at most."""
    hits = [hit for each in found for hit in each.hits]
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
    shown = request.fields
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
