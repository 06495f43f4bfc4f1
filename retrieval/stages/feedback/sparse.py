"""Feedback for sparse retrievers: adds the best terms of the first documents to the query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import finite_number, whole_number
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.explanation import term_texts
from sluice.retrieval.stages.feedback.stage import Feedback, Lists, places_in

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.state import RetrieverState

COUNTS = ("score", "equal")
COMMON = 0.1  # share of the documents above which a term of BM25 says nothing


class TermFeedback(Feedback):
    """RM3: searches a sparse retriever with the query and the best terms of its first documents.

    Of the first ``documents`` of the list each counts its ``terms`` heaviest, as shares of their
    sum, times its score in the list (``by="score"``; all alike where one of the scores is 0 or
    less, and ``by="equal"``); the ``terms`` best of the sum are mixed into the query, which keeps
    ``original_weight``; one that the retriever has no term of is the terms found alone.
    ``documents=0`` and ``original_weight=1`` are the retriever itself.

    For BM25 a document's shares are those of its term counts, got back exactly from the impacts the
    index stores (``sluice.retrieval.stages.feedback.relevance_model.term_odds``; with fields,
    counts over the length factor of their field), terms in more than ``max_document_share`` (0.1)
    of the documents are left out, and idf multiplies the mixture: Anserini's RM3, except that its
    filter on English spelling is left out, that words no document has do not count as the query's,
    and that of equal counts the rarer term goes first. SPLADE's and other learned weights are taken
    as they are.

    An index of ``u8`` or with ``top_terms`` gives what it kept. (Abdul-Jaleel et al., 2004;
    Lavrenko and Croft, 2001.)
    """

    def __init__(
        self,
        retriever: Stage,
        /,
        *,
        documents: int = 10,
        terms: int = 10,
        original_weight: float = 0.5,
        by: Literal["score", "equal"] = "score",
        max_document_share: float | None = None,
    ) -> None:
        if by not in COUNTS:
            raise ConfigError(
                f"rm3: by {by!r}; known: {', '.join(COUNTS)}{suggest(str(by), COUNTS)}"
            )
        self.terms = whole_number(terms, "rm3: terms", 1)
        self.original_weight = finite_number(original_weight, "rm3: original_weight", 0, 1)
        self.by = by
        self.max_document_share = max_document_share
        if max_document_share is not None:
            finite_number(max_document_share, "rm3: max_document_share", 0, 1)
        self.feedback_documents = whole_number(documents, "rm3: documents", 0)
        shown = f"documents={documents}, terms={terms}, original_weight={original_weight:g}"
        depth = 0 if self.original_weight == 1.0 else self.feedback_documents
        super().__init__(retriever, depth=depth, function="rm3", options=shown)

    def _check(self, state: RetrieverState, vectors: Any) -> None:
        from sluice.encoders import BM25Encoder

        super()._check(state, vectors)
        if isinstance(vectors, np.ndarray):
            raise ConfigError(
                f"{self.name}: {state.path} has dense vectors, which have no terms; use "
                f"prf({state.name})"
            )
        if self.max_document_share is not None and not isinstance(state.encoder, BM25Encoder):
            raise ConfigError(
                f"{self.name}: max_document_share is for BM25; {type(state.encoder).__name__} has "
                "no document frequencies: leave it out"
            )

    def _moved(self, state: RetrieverState, vectors: Any, lists: Lists) -> Any:
        from scipy import sparse

        from sluice.retrieval.stages.feedback.relevance_model import interpolated, relevance_model

        rows, places = places_in(lists.rows)
        if not len(rows):
            return vectors
        seen = self._seen(state, state.index.documents(rows), vectors)
        lines, columns = np.nonzero(places >= 0)
        weights = self._weights(lists)[lines, columns]
        shape = (len(places), len(rows))
        by_query = sparse.csr_array((weights, (lines, places[lines, columns])), shape=shape)
        model = relevance_model(seen.documents, by_query, self.terms, seen.scale)
        lengths = np.where(seen.lengths > 0, seen.lengths, 1.0)  # of nothing: the model alone
        mixed = interpolated(seen.queries, model, self.original_weight, lengths, seen.scale)
        return mixed.astype(np.float32)

    def _facts(
        self, state: RetrieverState, queries: Sequence[str], vectors: Any
    ) -> Mapping[str, Any]:
        """Return the terms of each new query and their weights, heaviest first."""
        texts = term_texts(state.encoder, vectors.indices.tolist())
        by_query = {}
        for place, query in enumerate(queries):
            start, stop = vectors.indptr[place], vectors.indptr[place + 1]
            terms = zip(texts[start:stop], vectors.data[start:stop].tolist(), strict=True)
            by_query[query] = sorted(terms, key=lambda term: (-term[1], term[0]))
        return {"terms": by_query}

    def _weights(self, lists: Lists) -> Any:
        """Return what each document counts, float64 ``[n, depth]``."""
        there = lists.rows >= 0
        if self.by == "equal":
            return there.astype(np.float64)
        positive = np.where(there, lists.scores, 1.0).min(axis=1) > 0
        return np.where(positive[:, None], lists.scores.astype(np.float64), 1.0)

    def _seen(self, state: RetrieverState, documents: Any, queries: Any) -> _Seen:
        """Return documents and queries in one width, as what their terms count."""
        from sluice.encoders import BM25Encoder
        from sluice.retrieval.stages.feedback.relevance_model import term_odds

        width = max(documents.shape[1], queries.shape[1])
        documents.resize((documents.shape[0], width))
        queries = queries.copy()
        queries.resize((queries.shape[0], width))
        encoder = state.encoder
        if not isinstance(encoder, BM25Encoder):
            lengths = np.asarray(queries.sum(axis=1, dtype=np.float64))
            return _Seen(documents, queries, lengths, None)
        share = COMMON if self.max_document_share is None else self.max_document_share
        scale = np.zeros(width)
        scale[: encoder.dim] = encoder.idf()
        common = np.zeros(width, np.bool_)
        common[: encoder.dim] = encoder.document_frequencies > share * encoder.documents
        counts = term_odds(documents)
        counts.data[common[counts.indices]] = 0.0
        asked = queries.astype(np.float64)
        asked.data /= scale[asked.indices]
        return _Seen(counts, queries, np.asarray(asked.sum(axis=1)), scale)

    def _joined(self, parts: Sequence[Any]) -> Any:
        from scipy import sparse

        width = max(part.shape[1] for part in parts)
        for part in parts:
            part.resize((part.shape[0], width))
        return sparse.vstack(parts, format="csr")


class _Seen(NamedTuple):
    documents: Any  # csr [m, width]: what each term counts in a feedback document
    queries: Any  # csr [n, width]
    lengths: Any  # [n]: what the terms of a query count together
    scale: Any  # [width]: weight of a count of 1 in a query, None where that is 1


rm3 = TermFeedback  # ``rm3(bm25)`` in a pipeline
