"""Pseudo-relevance feedback: a second search with the query changed by the first documents.

The pipeline decides where the feedback comes from. At the beginning, the stage searches first and
takes it from that list; after another stage, from the list it is given. With a sparse list fused
in, these are the four ways of Li et al. (2022, "To interpolate or not to interpolate"):

    none     weighted(bm25, dense)
    before   (bm25 | dense) >> prf(dense)
    after    weighted(bm25, prf(dense))
    both     weighted(bm25, (bm25 | dense) >> prf(dense))

A fusion hands the list it is given to its parts: ``x >> weighted(bm25, prf(dense))`` takes the
feedback from ``x``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import finite_number, whole_number
from sluice.familiar import renamed
from sluice.retrieval.pipelines.stage import Around, Stage
from sluice.retrieval.pipelines.tracing import is_traced, note
from sluice.retrieval.retrievers.explanation import term_texts
from sluice.retrieval.retrievers.retriever import retriever_of
from sluice.retrieval.runs.queries import Queries, SelfExcluding
from sluice.retrieval.runs.run import Ranking, Run, without
from sluice.retrieval.stages.rerankers.stored_vectors import check_single_vectors

if TYPE_CHECKING:
    from sluice.retrieval.documents.where import Where
    from sluice.retrieval.pipelines.hit import Passage
    from sluice.retrieval.pipelines.tracing import Span
    from sluice.retrieval.retrievers.state import RetrieverState


BATCH = 512  # queries whose feedback documents are held at a time


class Lists(NamedTuple):
    """The documents that feedback may come from: a line per query, best first.

    ``lengths`` ``[n]`` say how many places of a line are filled; ``rows`` ``[n, depth]`` are -1
    where the retriever does not hold the document, and after the line's end.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]
    lengths: NDArray[np.int64]


class Feedback(Around):
    """Searches ``retriever`` with queries changed by the first ``depth`` documents of a list.

    Without a list before it, the list is the retriever's own first ``depth``; queries are encoded
    once and searched twice, all together. A query without a list, or whose documents the retriever
    does not hold, is searched unchanged; a blank one has no hits. The query's own document gives no
    feedback if it cannot be a hit either (``SelfExcluding``).

    ``function`` and ``options`` are what the expression says, for the name.
    """

    looks_inside = True
    lexical = False

    def __init__(self, retriever: Stage, *, depth: int, function: str, options: str) -> None:
        self.depth, self._settings = depth, options
        super().__init__(retriever, function)

    def _take(self, retriever: Stage) -> None:
        made_of_others = isinstance(retriever, Stage) and retriever.inner
        if not isinstance(retriever, Stage) or (made_of_others and retriever_of(retriever) is None):
            what = retriever.name if isinstance(retriever, Stage) else type(retriever).__name__
            raise ConfigError(
                f"{self._function}: feedback needs a retriever to ask again, and {what!r} is not "
                f"one; write {self._function}(NAME) with a name under retrievers"
            )
        super()._take(retriever)
        self.retriever = retriever
        self.name = f"{self._function}({retriever.name}, {self._settings})"

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Take feedback from the given run, or the retriever's own, and search with it."""
        state, where = self._searched()
        with_text = state.with_text(queries)
        vectors: Any = ()
        if with_text:
            vectors = state.encoder.encode_queries([queries[query] for query in with_text])
            self._check(state, vectors)
        if with_text and self.depth:
            if given is None:
                given = state.nearest(queries, with_text, vectors, self.depth, where=where)
            rankings = [self._first(queries, query, given) for query in with_text]
            vectors = self._changed(state, vectors, rankings)
            if is_traced():
                heads = zip(with_text, rankings, strict=True)
                note({"feedback": {query: list(head.doc_ids) for query, head in heads}})
                note(self._facts(state, with_text, vectors))
        run = state.nearest(queries, with_text, vectors, k, where=where)
        run.name = self.name
        return run

    def passages_of(self, query: str, doc_ids: Sequence[str], span: Span) -> list[Passage | None]:
        """Return each document's passage: the first, where the retriever has only first ones."""
        return self._searched()[0].passages_of(query, doc_ids, span)

    def _first(self, queries: Queries, query: str, given: Run) -> Ranking:
        """Return the documents of a query's list that feedback may come from."""
        ranking = given.get(query, Ranking([], []))
        if isinstance(queries, SelfExcluding):
            ranking = without(ranking[: self.depth + 1], query)
        return ranking[: self.depth]

    def _searched(self) -> tuple[RetrieverState, Where | None]:
        """Return the state for both searches, and the filter on its documents."""
        retriever = retriever_of(self.retriever)
        if retriever is not None:
            return retriever.state, self.retriever.base_where
        raise ConfigError(
            f"{self.name}: needs a retriever to ask again, and {self.retriever.name!r} is a "
            f"{type(self.retriever).__name__}"
        )

    def _check(self, state: RetrieverState, vectors: Any) -> None:
        check_single_vectors(state, self.name)

    def _changed(self, state: RetrieverState, vectors: Any, rankings: Sequence[Ranking]) -> Any:
        """Return the queries' new vectors, a batch at a time."""
        parts = []
        for start in range(0, len(rankings), BATCH):
            batch = slice(start, start + BATCH)
            lists = lists_of(state, rankings[batch], self.depth)
            parts.append(self._moved(state, vectors[batch], lists))
        return self._joined(parts)

    @abstractmethod
    def _moved(self, state: RetrieverState, vectors: Any, lists: Lists) -> Any:
        """Return the new vectors of some queries."""

    def _facts(
        self, state: RetrieverState, queries: Sequence[str], vectors: Any
    ) -> Mapping[str, Any]:
        """Return the facts about the new queries that a trace notes."""
        return {}

    @abstractmethod
    def _joined(self, parts: Sequence[Any]) -> Any:
        """Return the vectors of all batches as one."""


def lists_of(state: RetrieverState, rankings: Sequence[Ranking], depth: int) -> Lists:
    """Return rankings of at most ``depth`` documents by the rows of a retriever's index."""
    lengths = np.array([len(ranking) for ranking in rankings], np.int64)
    rows = np.full((len(rankings), depth), -1, np.int64)
    scores = np.zeros((len(rankings), depth), np.float32)
    filled = np.arange(depth) < lengths[:, None]
    rows[filled] = state.store.rows([doc for ranking in rankings for doc in ranking.doc_ids])
    if filled.any():
        scores[filled] = np.concatenate([ranking.scores for ranking in rankings])
    return Lists(rows, scores, lengths)


def places_in(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct rows, ascending, and where in them each row stands; -1 stays."""
    distinct = np.unique(rows[rows >= 0])
    return distinct, np.where(rows >= 0, np.searchsorted(distinct, rows), -1)


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
    index stores (``encoders.lexical.variants.relative_counts``; with fields, counts over the length
    factor of their field), terms in more than ``max_document_share`` (0.1)
    of the documents are left out, and idf multiplies the mixture: Anserini's RM3, except that its
    filter on English spelling is left out, that words no document has do not count as the query's,
    and that of equal counts the rarer term goes first. SPLADE's and other learned weights are taken
    as they are.

    An index of ``u8`` or with ``top_terms`` gives what it kept. (Abdul-Jaleel et al., 2004;
    Lavrenko and Croft, 2001.)
    """

    @renamed(documents="fb_docs", terms="fb_terms", original_weight="original_query_weight")
    def __init__(
        self,
        retriever: Stage,
        /,
        *,
        documents: Annotated[
            int, "Documents at the head of the list that are taken as relevant."
        ] = 10,
        terms: Annotated[int, "Terms of these documents that the query gets."] = 10,
        original_weight: Annotated[
            float, "The weight of the query's own terms, from 0 to 1."
        ] = 0.5,
        by: Annotated[
            Literal["score", "equal"], "What a document counts: its score, or all equal."
        ] = "score",
        max_document_share: Annotated[
            float | None, "Terms in a larger share of the documents are left out."
        ] = None,
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
        from sluice.encoders.lexical.variants import relative_counts

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
        counts = documents.astype(np.float64)
        counts.data = relative_counts(encoder.variant, counts.data, encoder.k1)
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
