"""Explains a pipeline for one query: who found what, where it moved, what each term adds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.pipelines.hit import TokenMatch, short
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.pipelines.tracing import Span, tracing
from sluice.retrieval.retrievers.corpus.token_scores import (
    exact_params,
    measured_recall,
)
from sluice.retrieval.retrievers.corpus.vectors.given_vectors import holds_tokens
from sluice.retrieval.retrievers.gather_recall import found_text
from sluice.retrieval.retrievers.retriever import retriever_of
from sluice.retrieval.runs.queries import DEPTH

if TYPE_CHECKING:
    from sluice.indexing.inverted.statistics import Plan
    from sluice.retrieval.pipelines.hit import PartScore, TokenMatch
    from sluice.retrieval.retrievers.state import RetrieverState


class TermPart(NamedTuple):
    """One term's part of a score: ``contribution`` is ``query_weight`` times ``impact``."""

    term: str
    query_weight: float
    impact: float
    contribution: float


class Explanation(NamedTuple):
    """The score of a document for a query, and the parts it is the sum of, largest first.

    The score is that of the hit, a float32; the parts add up to it in the index's term order.
    ``rank`` is the hit's place, from 1, None if it is not among those searched; a document
    without a term of the query is not a hit: score 0, no parts. ``plan`` is what the
    index's planner chose for the query and why, None for an index that has no planner.

    Of token vectors ``matches`` are the parts, in the order of the query's tokens, and there are no
    ``terms``; ``recall`` says what was measured of an index that gathers candidates, empty for one
    that is exact.

    Of a document that is searched by its passages the best one is explained, and the plan is that
    of searching passages; ``passage`` is its number, from 1.
    """

    doc_id: str
    score: float
    rank: int | None
    terms: list[TermPart]
    plan: Plan | None = None
    passage: int | None = None
    matches: Sequence[TokenMatch] = ()
    recall: str = ""

    @property
    def plan_text(self) -> str:
        """The plan in one line, empty without one."""
        if self.plan is None:
            return ""
        scored, total = self.plan.scored_blocks, self.plan.blocks
        blocks = f", {scored:,} of {total:,} blocks scored" if scored else ""
        return f"engine: {self.plan.engine}, {self.plan.reason}{blocks}"

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation for JSON."""
        terms = [part._asdict() for part in self.terms]
        plan = None if self.plan is None else self.plan._asdict()
        matches = [match._asdict() for match in self.matches]
        return {**self._asdict(), "terms": terms, "plan": plan, "matches": matches}


def explained(
    retriever: RetrieverState, query: str, doc_id: str, *, depth: int, k: int
) -> Explanation:
    """Explain a document's score; its rank is looked for among the first ``depth`` hits.

    The plan is that of a search for ``k`` hits. ``ConfigError`` for an index of single dense
    vectors, ``DataError`` for an unknown document.
    """
    from sluice.indexing.wrappers.fan_out import OWN_PARAMETERS
    from sluice.indexing.wrappers.passages import PassageIndex

    whole = retriever.index
    tokens = holds_tokens(whole)
    index = whole.innermost
    if not (index.explains or tokens):
        raise ConfigError(
            f"{retriever.path}: explain needs a sparse index (BM25, SPLADE), one of n-grams (SEAL) "
            "or identifiers (DSI), or of token vectors, this retriever has "
            f"{index.form.__name__}; a dense score has no terms"
        )
    if not isinstance(query, str):
        raise ConfigError(f"query: {query!r:.80}; expected text")
    row = retriever.store.row(doc_id)
    if row is None:
        raise DataError(f"{retriever.path}: no document {doc_id!r} to explain")
    reader, row = retriever.token_reader.holding(row)
    searched, index = reader.index, reader.index.innermost
    params = {k: v for k, v in retriever.params.items() if k not in OWN_PARAMETERS}
    vector = retriever.query_vectors([query])
    plan = next(iter(index.plan(vector, k, params=params)), None)
    if isinstance(searched, PassageIndex):
        hits = searched.best_passages(vector, [row])
    else:
        exact = exact_params(searched) if tokens else None
        hits = searched.search(vector, 1, keep=np.array([row]), params=exact)
    found = int(hits.rows[0, 0])
    recall = measured_recall(index) if tokens else ""
    if not query.strip() or found < 0:
        return Explanation(doc_id, 0.0, None, [], plan, recall=recall)
    terms: list[TermPart] = []
    matches: list[TokenMatch] = []
    if tokens:
        matches = reader.matches_in(query, vector, row, found)
    else:
        terms = _terms(retriever.encoder, index.explain(vector, found))
    ids = list(retriever.run({"query": query}, depth)["query"].doc_ids)
    rank = ids.index(doc_id) + 1 if doc_id in ids else None
    passage = None
    if isinstance(searched, PassageIndex):
        passage = found - int(searched.first_passages([row])[0]) + 1
    score = float(hits.scores[0, 0])
    return Explanation(doc_id, score, rank, terms, plan, passage, matches, recall)


def _terms(encoder: Any, parts: Sequence[Any]) -> list[TermPart]:
    """Return an index's parts of a score with the texts of their terms, largest first."""
    texts = term_texts(encoder, [part.term for part in parts])
    terms = [TermPart(text, *part[1:]) for text, part in zip(texts, parts, strict=True)]
    return sorted(terms, key=lambda part: (-part.contribution, part.term))


def term_texts(encoder: Any, columns: list[int]) -> list[str]:
    """Return the texts of an encoder's columns; their numbers if it has no ``terms``."""
    named = hooks_of(encoder).terms
    return [f"[{column}]" for column in columns] if named is None else list(named(columns))


QUERY = "query"
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
        if base is not None and (recall := measured_recall(base.index)):
            span.facts["recall"] = recall
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


def _ranking(span: Span) -> Any:
    return span.result[QUERY] if span.result is not None and QUERY in span.result else ()


def _of_query(value: Any) -> Any:
    return value[QUERY] if isinstance(value, dict) and set(value) == {QUERY} else value


def _path(doc_id: str, query: str, spans: Sequence[Span]) -> DocumentPath:
    places, found_by, terms = [], [], {}
    matches: dict[str, list[TokenMatch]] = {}
    parts: dict[str, list[PartScore]] = {}
    decided: tuple[str, int, int] | None = None
    for span in spans:
        ids = list(getattr(_ranking(span), "doc_ids", ()))
        at = ids.index(doc_id) if doc_id in ids else None
        score = None if at is None else float(_ranking(span).scores[at])
        place = Place(span.stage.name, None if at is None else at + 1, score)
        places.append(place)
        if _finds(span) and at is not None:
            found_by.append(span.stage.name)
        if at is not None and at < _scored(span):
            met = list(span.stage.matches_of(query, doc_id))
            matches |= {span.stage.name: met} if met else {}
            scored = list(span.stage.parts_of(query, doc_id))
            parts |= {span.stage.name: scored} if scored else {}
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
