"""Runs a pipeline as if one document had another text.

A stage returns what it would return if the document were replaced in the corpus, except that other
documents keep their scores (BM25 uses the document frequencies and the average length of the clean
corpus). The replaced document is scored again with the retriever's encoder and similarity: dense
vectors exactly, as by ``FlatIndex``, even if the retriever's own index is approximate, sparse ones
by an index with the same settings. Rerankers read the new text, without a deadline. Fusions, cuts
and depths work on these results.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import issparse

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing import FlatIndex, Index, PassageIndex, TokenIndex
from sluice.indexing.tokens.storage.segment import RESIDUAL_BITS
from sluice.indexing.wrappers.sharded import ShardedIndex
from sluice.retrieval.documents.document import Document, document_input
from sluice.retrieval.pipelines.rerank import Rerank
from sluice.retrieval.pipelines.scorer import ScoreMemory, remembered
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.retrievers.corpus.fill_index import own_index
from sluice.retrieval.retrievers.corpus.passage_indexing import mean_vectors
from sluice.retrieval.retrievers.retriever import Retriever, retriever_of
from sluice.retrieval.retrievers.state import RetrieverState
from sluice.retrieval.runs.queries import DEPTH, Queries, SelfExcluding
from sluice.retrieval.runs.run import Ranking, Run, canonical_order, without

Job = tuple[str, Document]  # a query's id, and the new version of the document for that query


class Scene:
    """The document that is replaced at the moment; None leaves the corpus unchanged."""

    def __init__(self) -> None:
        self.document: Document | None = None


class AlteredTexts:
    """A document store in which the scene's document has its new text."""

    def __init__(self, store: Texts, scene: Scene) -> None:
        self._store, self._scene = store, scene

    def texts(self, document_ids: Sequence[str]) -> list[str]:
        """Return the full texts of documents, in the order of the ids."""
        texts, new = self._store.texts(document_ids), self._scene.document
        if new is None:
            return texts
        return [
            new.full_text if name == new.id else text
            for name, text in zip(document_ids, texts, strict=True)
        ]


class AlteredRetriever(Stage):
    """A retriever that ranks the scene's document by its new score.

    ``stage`` is the retriever itself, or a stage around it such as a filter. Clean rankings and new
    scores are remembered. ``prepare`` scores many documents together.
    """

    def __init__(self, stage: Stage, retriever: Retriever, scene: Scene) -> None:
        self.stage, self.name = stage, stage.name
        self._retriever = retriever
        self._scene = scene
        self._clean: dict[str, tuple[int, Ranking]] = {}
        self._scores: dict[Job, float | None] = {}  # None if the document is not a hit

    @property
    def documents(self) -> Texts:
        """The store with the new text."""
        return AlteredTexts(self._retriever.documents, self._scene)

    @property
    def least_score(self) -> float | None:
        """The retriever's least score: the new document is scored by the same similarity."""
        return self._retriever.least_score

    def prepare(self, queries: Queries, jobs: Sequence[Job]) -> None:
        """Score each new document for its query, unless its score is known."""
        new = [job for job in dict.fromkeys(jobs) if job not in self._scores]
        texts = list(dict.fromkeys(query for query, _ in new if queries[query].strip()))
        scores: dict[Job, float | None] = dict.fromkeys(new)
        if texts:
            state = self._retriever.state
            index = side_index(state, [document for _, document in new])
            vectors = state.encoder.encode_queries([queries[query] for query in texts])
        for place, query in enumerate(texts):
            rows = np.array([row for row, (owner, _) in enumerate(new) if owner == query])
            hits = index.search(vectors[place : place + 1], len(rows), keep=rows)
            for row, score in zip(hits.rows[0].tolist(), hits.scores[0].tolist(), strict=True):
                if row >= 0:
                    scores[new[row]] = score
        self._scores |= scores

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Search, and rank the new document by its new score."""
        depth = DEPTH if k is None else k
        excluding = isinstance(queries, SelfExcluding)
        searched = depth + excluding  # as the retriever searches
        missing = {
            q: text for q, text in queries.items() if self._clean.get(q, (0,))[0] <= searched
        }
        if missing:
            for query, ranking in self.stage.rank(missing, None, searched + 1).items():
                self._clean[query] = (searched + 1, ranking)
        new = self._scene.document
        if new is not None:
            self.prepare(queries, [(query, new) for query in queries])
        rankings = {}
        for query in queries:
            ranking = self._clean[query][1]
            if new is not None:
                ranking = _placed(ranking, new.id, self._scores[query, new])
            ranking = self._cut(ranking, searched)
            rankings[query] = (without(ranking, query) if excluding else ranking)[:depth]
        return Run(rankings, name=self.name)

    def _cut(self, ranking: Ranking, depth: int) -> Ranking:
        """Return the first ``depth`` hits; of those that tie with the last, the lowest rows."""
        if not 0 < depth < len(ranking) or ranking.scores[depth - 1] != ranking.scores[depth]:
            return ranking[:depth]
        tied = np.flatnonzero(ranking.scores == ranking.scores[depth])
        rows = self._retriever.store.rows([ranking.doc_ids[place] for place in tied.tolist()])
        first = tied[np.argsort(rows)][: depth - tied[0]]
        places = np.sort(np.concatenate([np.arange(tied[0]), first])).tolist()
        return Ranking([ranking.doc_ids[place] for place in places], ranking.scores[places])


class RememberedScores:
    """A scorer of pairs that scores no pair twice."""

    def __init__(self, scorer: Any) -> None:
        self._scorer = scorer
        self._memory: ScoreMemory[tuple[str, str]] = ScoreMemory()

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Return the scores of pairs, float32 ``[n]``."""

        def score(places: list[int]) -> np.ndarray:
            return np.asarray(self._scorer.score([pairs[place] for place in places]), np.float32)

        return remembered(pairs, self._memory.found, score, self._memory.add).scores


class AlteredPipeline:
    """A pipeline that runs with one document of the corpus replaced.

    Stages are rebuilt from altered parts (``Stage.over``), down to a retriever or a stage around
    one. Rerankers of your own read the new text from the store they are attached to.
    ``ConfigError`` for a stage that allows neither, and for one that reads a retriever's index
    instead of the text.
    """

    def __init__(self, stage: Stage) -> None:
        self.scene = Scene()
        self._documents = stage.documents
        self._leaves: dict[int, AlteredRetriever] = {}
        self._scorers: dict[int, RememberedScores] = {}
        self.stage = self._altered(stage)

    def prepare(self, queries: Queries, jobs: Sequence[Job]) -> None:
        """Encode and score many new documents together, for their retrievers and rerankers."""
        for leaf in self._leaves.values():
            leaf.prepare(queries, jobs)
        pairs = [(queries[query], document.full_text) for query, document in jobs]
        for scorer in self._scorers.values():
            scorer.score(pairs)

    def run(self, queries: Queries, document: Document | None = None, k: int = DEPTH) -> Run:
        """Return the rankings of ``queries`` with the document of this id replaced."""
        self.scene.document = document
        try:
            return self.stage.run(queries, None, k).top(k)
        finally:
            self.scene.document = None

    def _altered(self, stage: Stage) -> Stage:
        if isinstance(stage, Rerank):
            return self._reranker(stage)
        if stage.looks_inside:
            raise _looking(stage)
        if stage.needs_candidates and not stage.inner:
            return self._own_reranker(stage)
        if stage.inner:
            altered = stage.over([self._altered(part) for part in stage.inner])
            if altered is not stage:
                return altered
        if (retriever := retriever_of(stage)) is not None:
            leaf = AlteredRetriever(stage, retriever, self.scene)
            return self._leaves.setdefault(id(stage), leaf)
        raise ConfigError(
            f"{stage.name}: a {type(stage).__name__} cannot run with a replaced document; "
            "expected retrievers, cuts, fusions and rerankers of texts"
        )

    def _reranker(self, stage: Rerank) -> Rerank:
        if stage.inner:
            raise _looking(stage)
        reranker = copy.copy(stage)
        reranker.deadline_ms = None
        if reranker._documents is not None:
            reranker._documents = AlteredTexts(reranker._documents, self.scene)
        if not reranker._of_lists:
            known = self._scorers.setdefault(id(stage.scorer), RememberedScores(stage.scorer))
            reranker.scorer = known
        return reranker

    def _own_reranker(self, stage: Stage) -> Stage:
        """Attach a reranker other than ``Rerank`` to the altered store."""
        texts = self._documents
        reranker = stage if texts is None else stage.attached(AlteredTexts(texts, self.scene))
        if reranker is stage:
            raise ConfigError(
                f"{stage.name}: a {type(stage).__name__} cannot run with a replaced document; "
                "expected its method attached(documents) to return another reranker, which reads "
                "texts from these documents"
            )
        return reranker


def _looking(stage: Stage) -> ConfigError:
    return ConfigError(
        f"{stage.name}: reads the index of {stage.inner[0].name!r}, where a document cannot be "
        "replaced; expected a reranker of texts"
    )


def side_index(state: RetrieverState, documents: Sequence[Document]) -> Index:
    """Return an index of these documents that scores them as the retriever's own would.

    Passages are split and aggregated as in the retriever. ``ConfigError`` for vectors that are
    neither dense nor sparse.
    """
    encoder, passages = state.encoder, state.passages
    cut = [[document] for document in documents]
    if passages is not None:
        encoder = passages.reader(encoder)
        cut = [list(parts) for parts in passages.split(encoder, list(documents))]
    counts = np.array([len(parts) for parts in cut], np.int64)
    inputs = [document_input(encoder, part) for parts in cut for part in parts]
    vectors = encoder.encode_documents(inputs)
    by_best = passages is not None and passages.aggregate == "max"
    if passages is not None and not by_best:
        normalize = hooks_of(encoder).similarity == "cosine"
        vectors = mean_vectors(vectors, counts, normalize=normalize)
    index = own_index(encoder)
    if index is None:
        index = _emptied(state.index, vectors)
    if by_best:
        whole = PassageIndex(index)
        whole.add(vectors, counts)
        return whole
    index.add(vectors)
    return index


def _emptied(index: Index, vectors: Any) -> Index:
    inner: Any = index.first.innermost if isinstance(index, ShardedIndex) else index.innermost
    if isinstance(vectors, TokenVectors):
        learnt = inner.store in RESIDUAL_BITS  # a few documents have another codebook
        return TokenIndex("float32") if learnt else TokenIndex(inner.store)
    if isinstance(vectors, np.ndarray):
        return FlatIndex(inner.metric or "ip")
    if inner.metric is None and issparse(vectors):
        empty: Index = inner.empty()
        return empty
    raise ConfigError(
        f"{type(inner).__name__}: cannot score vectors of type {type(vectors).__name__}; expected "
        "a dense or a sparse retriever"
    )


def _placed(ranking: Ranking, doc_id: str, score: float | None) -> Ranking:
    """Return a ranking with one document at the rank of its new score."""
    places = [place for place, name in enumerate(ranking.doc_ids) if name != doc_id]
    doc_ids = [ranking.doc_ids[place] for place in places]
    scores = ranking.scores[places]
    if score is None:
        return Ranking(doc_ids, scores)
    doc_ids.append(doc_id)
    scores = np.append(scores, np.float32(score))
    order = canonical_order(doc_ids, scores)
    return Ranking([doc_ids[place] for place in order.tolist()], scores[order])
