"""Shows in the report which tokens met, for retrievers of token vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sluice.encoders.foundation.errors import SluiceError
from sluice.retrieval.pipelines.hit import TokenMatch
from sluice.retrieval.retrievers.corpus.vectors.given_vectors import holds_tokens
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.studies.report.distributions import figures
from sluice.retrieval.studies.report.evaluated import EvaluatedSet

PAIRS = 32  # of a document: the first tokens of the query
LONGEST = 40  # characters of a token that are shown: a pooled vector names several

DocIds = Mapping[str, Sequence[str]]  # query id -> documents whose scores are explained


def token_pairs(evaluated: EvaluatedSet, doc_ids_by_query: DocIds) -> dict[str, dict[str, Any]]:
    """Return by query and retriever which tokens of the documents each of the query's met.

    ``{query id: {retriever: {"tokens", "count", "documents": {id: [[token, similarity], ...]},
    "others", "rest": {id: similarity}}}}``: ``tokens`` are the first of the query's text, in their
    order, ``count`` how many it has; each document's pairs are one for each of these. ``others``
    are masks and marks, of which ``rest`` has the sum.
    """
    explained: dict[str, dict[str, Any]] = {query: {} for query in doc_ids_by_query}
    for name, retriever in evaluated.retrievers.items():
        try:
            if not holds_tokens(retriever.index):
                continue
            for query, doc_ids in doc_ids_by_query.items():
                text = evaluated.dataset.queries.get(query, "")
                explained[query] |= _pairs(name, retriever, text, doc_ids)
        except (SluiceError, ImportError, OSError) as error:
            evaluated.failed(f"tokens of {name}", error)
    return explained


def _pairs(name: str, retriever: Retriever, text: str, doc_ids: Sequence[str]) -> dict[str, Any]:
    matches = retriever.state.token_reader.matches(text, doc_ids)
    if not matches:
        return {}
    own = {doc: [each for each in met if each.in_query] for doc, met in matches.items()}
    rest = {doc: [each for each in met if not each.in_query] for doc, met in matches.items()}
    first = next(iter(own))
    sums = figures([sum(each.similarity for each in met) for met in rest.values()], 3)
    return {
        name: {
            "tokens": [_cut(match.query_token) for match in own[first][:PAIRS]],
            "count": len(own[first]),
            "documents": {doc: _row(met[:PAIRS]) for doc, met in own.items()},
            "others": len(rest[first]),
            "rest": dict(zip(rest, sums, strict=True)),
        }
    }


def _row(matches: Sequence[TokenMatch]) -> list[list[Any]]:
    shown = figures([match.similarity for match in matches], 3)
    return [[_cut(m.document_token), value] for m, value in zip(matches, shown, strict=True)]


def _cut(token: str) -> str:
    return token if len(token) <= LONGEST else f"{token[: LONGEST - 1]}…"
