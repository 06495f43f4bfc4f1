"""MaxSim scores and matches of single documents, from the token vectors that an index holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import Side, hooks_of
from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.retrieval.documents.document import document_input
from sluice.retrieval.pipelines.token_match import TokenMatch, token_matches

if TYPE_CHECKING:
    from sluice.indexing import Index
    from sluice.retrieval.retrievers.state import RetrieverState

EXACT = {"mode": "exact"}  # search parameters of an index of token vectors


def stored_scores(
    index: Index, query: TokenVectors, rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the MaxSim of one query with documents of an index of token vectors, float32 ``[n]``.

    They are those of an exact search. A document without tokens scores -1 for each token of the
    query, below all others where vectors have length 1.
    """
    scores = np.full(len(rows), -float(len(query.values)), np.float32)
    if not len(rows) or not len(query.values):
        return scores
    distinct, places = np.unique(rows, return_inverse=True)
    hits = index.search(query, len(distinct), keep=distinct, params=EXACT)
    found = hits.rows[0] >= 0
    by_row = np.full(len(distinct), np.float32(scores[0]))
    by_row[np.searchsorted(distinct, hits.rows[0][found])] = hits.scores[0][found]
    return by_row[places.reshape(-1)]


def stored_matches(state: RetrieverState, query: str, doc_id: str) -> list[TokenMatch]:
    """Return which tokens of a document met those of a query; none for an unknown document."""
    from sluice.indexing.wrappers.passages import PassageIndex

    row = state.store.row(doc_id)
    if row is None or not query.strip():
        return []
    vector = state.encoder.encode_queries([query])
    found = row
    if isinstance(state.index, PassageIndex):
        found = int(state.index.best_passages(vector, [row]).rows[0, 0])
    return matches_in(state, query, vector, row, found) if found >= 0 else []


def matches_in(
    state: RetrieverState, query: str, vector: TokenVectors, row: int, found: int
) -> list[TokenMatch]:
    """Return the matches of a query, encoded as ``vector``, with the document in ``row``.

    ``found`` is the row of the innermost index: that of the best passage, or ``row`` itself.
    """
    stored = state.index.innermost.documents(np.array([found]))
    names = None
    if state.passages is None:  # a passage's own text is not at hand
        document = state.store.documents(np.array([row]))[0]
        names = names_of(state.encoder, document_input(state.encoder, document), "document")
    asked = names_of(state.encoder, query, "query")
    return token_matches(vector.text(0), stored.text(0), asked, names)


def measured_recall(index: Index) -> str:
    """Return what was measured of an index that gathers candidates; empty for an exact one."""
    return ""


def names_of(encoder: Any, text: Any, side: Side) -> list[str] | None:
    """Return the names of the token vectors of a text, None if the encoder has none."""
    named = hooks_of(encoder).token_texts
    return None if named is None else list(named([text], side)[0])
