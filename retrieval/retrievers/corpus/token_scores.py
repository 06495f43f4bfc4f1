"""MaxSim scores and matches of single documents, from the token vectors that an index holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import Side, hooks_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.retrieval.documents.document import document_input
from sluice.retrieval.pipelines.hit import TokenMatch

if TYPE_CHECKING:
    from sluice.indexing import Index
    from sluice.retrieval.documents.store import DocumentStore


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


@dataclass(frozen=True, slots=True)
class TokenReader:
    """Reads which tokens of stored documents met those of a query; ``cut``: into passages."""

    encoder: Any
    index: Index
    store: DocumentStore
    cut: bool

    def matches(self, query: str, doc_ids: Sequence[str]) -> dict[str, list[TokenMatch]]:
        """Return the matches with each document; unknown ones and those without tokens left out.

        The query is encoded once.
        """
        from sluice.indexing.wrappers.passages import PassageIndex

        rows = {doc: row for doc in doc_ids if (row := self.store.row(doc)) is not None}
        if not rows or not query.strip():
            return {}
        vector = self.encoder.encode_queries([query])
        matches: dict[str, list[TokenMatch]] = {}
        for doc, row in rows.items():
            reader, found = self.holding(row)
            row = found
            if isinstance(reader.index, PassageIndex):
                found = int(reader.index.best_passages(vector, [row]).rows[0, 0])
            met = reader.matches_in(query, vector, row, found) if found >= 0 else []
            matches |= {doc: met} if met else {}
        return matches

    def holding(self, row: int) -> tuple[TokenReader, int]:
        """Return the reader of what holds a row, and its number there; of shards it is one's."""
        return self, row

    def matches_in(
        self, query: str, vector: TokenVectors, row: int, found: int
    ) -> list[TokenMatch]:
        """Return the matches of a query, encoded as ``vector``, with the document in ``row``.

        ``found`` is the row of the innermost index: that of the best passage, or ``row`` itself.
        """
        index: Any = self.index.innermost
        met = index.matches(vector.text(0), found)
        names = None
        if not self.cut:  # a passage's own text is not at hand
            document = self.store.documents(np.array([row]))[0]
            names = names_of(self.encoder, document_input(self.encoder, document), "document")
            if names is not None and len(names) != index.documents(np.array([found])).lengths[0]:
                names = None
        asked = names_of(self.encoder, query, "query")
        return named_matches(met.positions, met.products, asked, names)


def exact_params(index: Index) -> Mapping[str, Any]:
    """Return the search parameters by which an index of token vectors searches exactly."""
    exact = {"mode": "exact"}
    try:
        index.check_params(exact)
    except ConfigError:  # it has no other mode
        return {}
    return exact


def measured_recall(index: Index) -> str:
    """Return what was measured of an index that gathers candidates, or has a loss.

    Of an exact one it is empty, or what to do to have it gather.
    """
    from sluice.indexing import InvertedIndex, TokenIndex
    from sluice.indexing.wrappers.sharded import ShardedIndex

    inner = index.first.innermost if isinstance(index, ShardedIndex) else index.innermost
    if isinstance(inner, InvertedIndex):
        return "" if inner.recall_note is None else f"loss: {inner.recall_note}"
    if not isinstance(inner, TokenIndex):
        return ""
    if inner.searches == "exact":
        return inner.advice
    return (
        "gather: its recall is not measured"
        if inner.recall_note is None
        else (f"gather: {inner.recall_note}")
    )


class TokenNames(NamedTuple):
    """What the token vectors of a text are called, and where in it they stand, if it is known."""

    names: Sequence[str]
    places: Sequence[Sequence[tuple[int, int]]] | None

    def __len__(self) -> int:
        return len(self.names)


def names_of(encoder: Any, text: Any, side: Side) -> TokenNames | None:
    """Return the names of the token vectors of a text, None if the encoder has none."""
    named = hooks_of(encoder).token_names
    if named is None:
        return None
    names = list(named.token_texts([text], side)[0])
    every = named.token_places([text], side)
    places = None if every is None else every[0]
    known = places is not None and len(places) == len(names) and any(places)
    return TokenNames(names, places if known else None)


def token_matches(
    query: NDArray[np.float32],
    document: NDArray[np.float32],
    asked: TokenNames | None,
    named: TokenNames | None,
) -> list[TokenMatch]:
    """Return each query token's best match, in the query's order; of equal ones the first.

    ``query`` is ``[query tokens, dim]``, ``document`` ``[tokens, dim]``. Names that are missing, or
    are not as many as the vectors, become numbers. A document without tokens has no matches.
    (Khattab and Zaharia, 2020, ColBERT, eq. 3.)
    """
    if not len(query) or not len(document):
        return []
    similarities = query.astype(np.float64) @ document.astype(np.float64).T
    best = similarities.argmax(axis=1)
    known = named if named and len(named) == len(document) else None
    return named_matches(best, similarities.max(axis=1), asked, known)


def named_matches(
    places: NDArray[np.int64],
    products: NDArray[Any],
    asked: TokenNames | None,
    named: TokenNames | None,
) -> list[TokenMatch]:
    """Return the matches of a query's tokens with those at ``places`` of a document, -1 for none.

    ``products`` are the similarities, ``[query tokens]``.
    """
    asked = asked if asked and len(asked) == len(places) else None
    in_query = None if asked is None else asked.places
    spans = None if named is None else named.places
    return [
        TokenMatch(
            f"[{i}]" if asked is None else asked.names[i],
            f"[{j}]" if named is None else named.names[j],
            product, i, j,
            in_query is None or bool(in_query[i]),
            () if spans is None else tuple(spans[j]),
        )
        for i, (j, product) in enumerate(zip(places.tolist(), products.tolist(), strict=True))
        if j >= 0
    ]  # fmt: skip
