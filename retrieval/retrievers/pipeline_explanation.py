"""Explains a pipeline for one query: who found each document, where it moved, what it cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.pipelines.hit import short
from sluice.retrieval.pipelines.rerank import Rerank
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.pipelines.tracing import Span, tracing
from sluice.retrieval.retrievers.corpus.token_scores import measured_recall
from sluice.retrieval.retrievers.measurements import (
    approximate,
    approximate_recall,
    found_text,
)
from sluice.retrieval.retrievers.retriever import retriever_of
from sluice.retrieval.runs.queries import DEPTH
from sluice.retrieval.runs.run import Ranking

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.hit import PartScore, TokenMatch
    from sluice.retrieval.retrievers.explanation import TermPart

QUERY = "query"
EMPTY = Ranking([], [])
TERMS = 5  # of each sparse retriever, the largest contributions


@dataclass(frozen=True, slots=True)
class Step:
    """One stage that ran: its own time, the number of documents it returned, and its facts."""

    name: str
    finds: bool  # whether it is a retriever, or searches one
    milliseconds: float
    documents: int
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """A document's rank after a step, from 1, and its score; None if it was not returned."""

    step: str
    rank: int | None
    score: float | None


@dataclass(frozen=True, slots=True)
class DocumentPath:
    """One document's path through the pipeline.

    ``found_by`` names the retrievers that returned it. ``decided`` is the later step that moved it
    furthest, with its ranks before and after; None if nothing moved it. ``terms`` are
    the largest parts of its score by each sparse retriever, ``matches`` the tokens that met, by
    each stage that compares token vectors, ``parts`` those that a stage scored one by one.
    """

    doc_id: str
    rank: int | None
    score: float | None
    places: list[Place]
    found_by: list[str]
    decided: tuple[str, int, int] | None
    terms: dict[str, list[TermPart]] = field(default_factory=dict)
    matches: dict[str, list[TokenMatch]] = field(default_factory=dict)
    parts: dict[str, list[PartScore]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PipelineExplanation:
    """The steps of a pipeline for one query, in the order they ended, and its documents' paths."""

    query: str
    milliseconds: float
    steps: list[Step]
    documents: list[DocumentPath]

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation for JSON."""
        facts = asdict(self)
        for document, path in zip(facts["documents"], self.documents, strict=True):
            for kind in ("terms", "matches", "parts"):
                listed: Any = getattr(path, kind).items()
                document[kind] = {name: [each._asdict() for each in of] for name, of in listed}
        return facts

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def explain_pipeline(
    stage: Stage, query: str, k: int = 10, *, doc_ids: Sequence[str] | None = None
) -> PipelineExplanation:
    """Run a pipeline for one query and report what each stage did with its best ``k`` documents.

    ``doc_ids`` names other documents to follow instead. Times are of this run, loading
    included if it is the first. ``ConfigError`` for a query that is not text.
    """
    if not isinstance(query, str):
        raise ConfigError(f"query: {query!r}; expected text")
    k = whole_number(k, "k", 1)
    with tracing() as spans:
        run = stage.run({QUERY: query}, None, max(k, DEPTH) if doc_ids is not None else k)
    followed = list(run[QUERY].doc_ids)[:k] if doc_ids is None else list(doc_ids)
    shown = [span for span in _shown(spans[0]) if span.result is not None]
    for span in shown:
        if found := found_text(span, {QUERY: query}, k):
            span.facts["of the exact best"] = found
        base = retriever_of(span.stage) if _finds(span) else None
        if base is None:
            continue
        if recall := measured_recall(base.index):
            span.facts["recall"] = recall
        if approximate(base):
            span.facts["of the exact best"] = str(approximate_recall(base, {QUERY: query}))
    steps = [
        Step(
            span.stage.name,
            _finds(span),
            span.own_seconds * 1000,
            len(_ranking(span)),
            {name: _of_query(value) for name, value in span.facts.items()},
        )
        for span in shown
    ]
    paths = [_path(doc_id, query, shown) for doc_id in followed]
    return PipelineExplanation(query, spans[0].seconds * 1000, steps, paths)


def _shown(span: Span) -> Iterator[Span]:
    """Yield the spans of stages that do something: not those that only wrap another."""
    for part in span.inner:
        yield from _shown(part)
    if not span.inner or span.inner[-1].result is not span.result:
        yield span


def _finds(span: Span) -> bool:
    """Return whether a stage finds documents itself: as a retriever, or by searching one."""
    return not (span.inner or span.stage.needs_candidates)


def _ranking(span: Span) -> Ranking:
    return EMPTY if span.result is None else span.result.get(QUERY, EMPTY)


def _of_query(value: Any) -> Any:
    return value[QUERY] if isinstance(value, dict) and set(value) == {QUERY} else value


def _path(doc_id: str, query: str, spans: Sequence[Span]) -> DocumentPath:
    places, found_by, terms = [], [], {}
    matches: dict[str, list[TokenMatch]] = {}
    parts: dict[str, list[PartScore]] = {}
    decided: tuple[str, int, int] | None = None
    for span in spans:
        ids = list(_ranking(span).doc_ids)
        at = ids.index(doc_id) if doc_id in ids else None
        score = None if at is None else float(_ranking(span).scores[at])
        place = Place(span.stage.name, None if at is None else at + 1, score)
        places.append(place)
        if _finds(span) and at is not None:
            found_by.append(span.stage.name)
        if at is not None and at < _scored(span):
            met = list(span.stage.matches_of(query, doc_id))
            matches |= {span.stage.name: met} if met else {}
            stage = span.stage
            scored = list(stage.parts_of(query, doc_id)) if isinstance(stage, Rerank) else []
            parts |= {stage.name: scored} if scored else {}
        retriever = retriever_of(span.stage) if _finds(span) else None
        if retriever is not None:
            if at is not None and retriever.index.explains:
                terms[span.stage.name] = retriever.explain(query, doc_id).terms[:TERMS]
            continue
        before = _before(doc_id, span)
        if before is None or place.rank is None:
            continue
        if abs(before - place.rank) > (abs(decided[1] - decided[2]) if decided else 0):
            decided = (span.stage.name, before, place.rank)
    last = places[-1]
    return DocumentPath(
        doc_id,
        last.rank,
        last.score,
        places,
        found_by,
        decided,
        terms,
        matches,
        parts,
    )


def _scored(span: Span) -> float:
    """Return how many of the first documents a stage scored: of a reranker, down to its depth."""
    pairs = span.facts.get("pairs")
    return int(pairs.get(QUERY, 0)) if isinstance(pairs, dict) else float("inf")


def _before(doc_id: str, span: Span) -> int | None:
    """Return the document's best rank among what a stage was given, or what its parts found."""
    # A scorer's retrievers are not parts: its stage starts from the list that it was given.
    starts = span.stage.needs_candidates or not span.inner
    lists = [span.given] if starts else [part.result for part in span.inner]
    ranks = [
        list(run[QUERY].doc_ids).index(doc_id) + 1
        for run in lists
        if run is not None and QUERY in run and doc_id in run[QUERY].doc_ids
    ]
    return min(ranks, default=None)


def _lines(explanation: PipelineExplanation) -> Iterator[str]:
    yield f"{explanation.query!r}: {explanation.milliseconds:,.1f} ms"
    width = max(len(step.name) for step in explanation.steps)
    for step in explanation.steps:
        facts = ", ".join(f"{name} {value}" for name, value in step.facts.items())
        noted = f"  ({facts})" if facts else ""
        yield (
            f"  {step.name:<{width}}  {step.milliseconds:9.2f} ms  "
            f"{step.documents:>5,} documents{noted}"
        )
    for path in explanation.documents:
        rank = "not returned" if path.rank is None else f"rank {path.rank}, score {path.score:.4f}"
        yield f"\n{path.doc_id}: {rank}"
        for place in path.places:
            stood = "-" if place.rank is None else f"{place.rank:>5,}  {place.score:10.4f}"
            yield f"  {place.step:<{width}}  {stood}"
        yield f"  found by {', '.join(path.found_by) or 'no retriever'}"
        if path.decided is not None:
            name, before, after = path.decided
            yield f"  moved furthest by {name}: {before:,} -> {after:,}"
        for name, parts in path.terms.items():
            shown = ", ".join(f"{part.term} {part.contribution:.3f}" for part in parts)
            yield f"  {name}: {shown or 'no shared term'}"
        for name, met in path.matches.items():
            own = [each for each in met if each.in_query] or met  # masks are many, and say little
            best = sorted(own, key=lambda each: -each.similarity)[:TERMS]
            shown = ", ".join(
                f"{each.query_token} ~ {each.document_token} {each.similarity:.3f}" for each in best
            )
            yield f"  {name}: {shown}"
        for name, parts_scored in path.parts.items():
            likely = sorted(parts_scored, key=lambda each: -each.probability)[:TERMS]
            shown = ", ".join(f"{p.field} {short(p.text)!r} {p.probability:.3f}" for p in likely)
            yield f"  {name}: {shown}"
