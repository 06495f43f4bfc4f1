"""Explains a score: what each term adds to it, or which tokens met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.indexing.inverted.settings import EXACT
from sluice.retrieval.pipelines.hit import TokenMatch
from sluice.retrieval.retrievers.corpus.token_scores import (
    exact_params,
    measured_recall,
)
from sluice.retrieval.retrievers.corpus.vectors.index_tasks import holds_tokens

if TYPE_CHECKING:
    from sluice.indexing.inverted.statistics import Plan
    from sluice.retrieval.retrievers.state import RetrieverState

FEW = 10  # hits whose loss is shown


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
    ``terms``; ``recall`` says what was measured of an index that gathers candidates or has a loss,
    or what parameters leave out for this query; empty for a search that is exact.

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
    left_out = "" if tokens else _left_out(index, searched, vector, params)
    recall = left_out or measured_recall(index)
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


def _left_out(index: Any, searched: Any, vector: Any, params: Mapping[str, Any]) -> str:
    """Return what parameters of a search leave out of one query's exact best; empty for none."""
    from sluice.indexing import InvertedIndex

    setting = index.leaves_out(params) if isinstance(index, InvertedIndex) else ""
    if not setting or not EXACT.keys() & params.keys():  # what an index chose is measured
        return ""
    best = searched.search(vector, FEW, params={**params, **EXACT}).rows[0]
    found = searched.search(vector, FEW, params=params).rows[0]
    count = int(np.isin(found, best[best >= 0]).sum())
    return f"{setting}: {count} of the exact best {int((best >= 0).sum())} for this query"


def _terms(encoder: Any, parts: Sequence[Any]) -> list[TermPart]:
    """Return an index's parts of a score with the texts of their terms, largest first."""
    texts = term_texts(encoder, [part.term for part in parts])
    terms = [TermPart(text, *part[1:]) for text, part in zip(texts, parts, strict=True)]
    return sorted(terms, key=lambda part: (-part.contribution, part.term))


def term_texts(encoder: Any, columns: list[int]) -> list[str]:
    """Return the texts of an encoder's columns; their numbers if it has no ``terms``."""
    named = hooks_of(encoder).terms
    return [f"[{column}]" for column in columns] if named is None else list(named(columns))
