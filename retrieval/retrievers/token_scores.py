"""MaxSim scores and matches of single documents, from the token vectors that an index holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import Side, hooks_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.retrieval.documents.document import document_input
from sluice.retrieval.pipelines.token_match import TokenMatch, named_matches

if TYPE_CHECKING:
    from sluice.indexing import Index
    from sluice.retrieval.retrievers.state import RetrieverState


def stored_scores(
    index: Index, query: TokenVectors, rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the MaxSim of one query with documents of an index of token vectors, float32 ``[n]``.

    They are those of an exact search. A document without tokens scores -1 for each token of the
    query, below all others where vectors have length 1.
    """
    from sluice.indexing import TokenIndex

    least = np.float32(-len(query.values))
    if not len(rows) or not len(query.values):
        return np.full(len(rows), least)
    if isinstance(index, TokenIndex):
        scores = index.exact_scores(query.values, rows)
        return np.where(np.isneginf(scores), least, scores)
    distinct, places = np.unique(rows, return_inverse=True)  # of passages: by the best one
    hits = index.search(query, len(distinct), keep=distinct, params=exact_params(index))
    found = hits.rows[0] >= 0
    by_row = np.full(len(distinct), least)
    by_row[np.searchsorted(distinct, hits.rows[0][found])] = hits.scores[0][found]
    return by_row[places.reshape(-1)]


def stored_matches(state: RetrieverState, query: str, doc_id: str) -> list[TokenMatch]:
    """Return which tokens of a document met those of a query; none for an unknown document."""
    return matches_of_all(state, query, [doc_id]).get(doc_id, [])


def matches_of_all(
    state: RetrieverState, query: str, doc_ids: Sequence[str]
) -> dict[str, list[TokenMatch]]:
    """Return the matches of a query with documents; those unknown or without tokens are left out.

    The query is encoded once.
    """
    from sluice.indexing.wrappers.passages import PassageIndex

    rows = {doc: row for doc in doc_ids if (row := state.store.row(doc)) is not None}
    if not rows or not query.strip():
        return {}
    vector = state.encoder.encode_queries([query])
    matches: dict[str, list[TokenMatch]] = {}
    for doc, row in rows.items():
        found = row
        if isinstance(state.index, PassageIndex):
            found = int(state.index.best_passages(vector, [row]).rows[0, 0])
        met = matches_in(state, query, vector, row, found) if found >= 0 else []
        matches |= {doc: met} if met else {}
    return matches


def matches_in(
    state: RetrieverState, query: str, vector: TokenVectors, row: int, found: int
) -> list[TokenMatch]:
    """Return the matches of a query, encoded as ``vector``, with the document in ``row``.

    ``found`` is the row of the innermost index: that of the best passage, or ``row`` itself.
    """
    index: Any = state.index.innermost
    met = index.matches(vector.text(0), found)
    names = None
    if state.passages is None:  # a passage's own text is not at hand
        document = state.store.documents(np.array([row]))[0]
        names = names_of(state.encoder, document_input(state.encoder, document), "document")
        if names is not None and len(names) != index.documents(np.array([found])).lengths[0]:
            names = None
    return named_matches(
        met.positions, met.products, names_of(state.encoder, query, "query"), names
    )


def exact_params(index: Index) -> Mapping[str, Any]:
    """Return the search parameters by which an index of token vectors searches exactly."""
    exact = {"mode": "exact"}
    try:
        index.check_params(exact)
    except ConfigError:  # it has no other mode
        return {}
    return exact


def measured_recall(index: Index) -> str:
    """Return what was measured of an index that gathers candidates; empty for an exact one."""
    from sluice.indexing import TokenIndex

    inner = index.innermost
    if not isinstance(inner, TokenIndex) or inner.searches == "exact":
        return ""
    return (
        "gather: its recall is not measured"
        if inner.recall_note is None
        else (f"gather: {inner.recall_note}")
    )


def names_of(encoder: Any, text: Any, side: Side) -> list[str] | None:
    """Return the names of the token vectors of a text, None if the encoder has none."""
    named = hooks_of(encoder).token_texts
    return None if named is None else list(named([text], side)[0])
