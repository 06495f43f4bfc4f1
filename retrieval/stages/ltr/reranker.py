"""Learning to rank as a stage: ``ltr(bm25, dense, model='runs/ltr', depth=200)``; its features."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.bounded_input import same_text_key
from sluice.encoders.foundation.disk.files import OwnLock
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.datasets.source import Qrels
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking
from sluice.retrieval.stages.ltr.collection_terms import CollectionTerms, collection_terms
from sluice.retrieval.stages.ltr.lexical_features import LEXICAL, lexical_features
from sluice.retrieval.stages.ltr.ranker import TERMS, LearnedRanker
from sluice.retrieval.stages.rerankers.similarity import candidate_scores


class QueryFolds(NamedTuple):
    """The fold of each query, from 0.

    ``apart`` says whether no document is relevant to queries of two folds; else ``largest`` is the
    share of the queries that relevant documents chain together, too many to be kept in one fold.
    """

    fold: Mapping[str, int]
    apart: bool
    largest: float


def query_folds(queries: Mapping[str, str], qrels: Qrels, folds: int, seed: int) -> QueryFolds:
    """Part queries into ``folds`` of about one size, by texts, judgements and the seed.

    Queries of one text share a fold, and so do queries with a relevant document in common: a model
    of (query, document) features can recognise a document by its lengths, and so use in a test fold
    what it learnt in the others. On SciFact, whose claims come in twos and threes from one
    abstract, folds at random promise 7 points of nDCG@10 too much. Where chains of such queries are
    longer than a fold (NFCorpus), only texts are kept together.
    """
    if not 2 <= folds <= max(len(queries), 2):
        raise ConfigError(f"folds: {folds} of {len(queries)} queries; expected from 2 to as many")
    keys = {query: _key(text, seed) for query, text in queries.items()}
    linked = _groups(queries, keys, qrels)
    largest = max(map(len, linked), default=0) / max(len(queries), 1)
    apart = largest <= 1 / folds
    groups = linked if apart else _groups(queries, keys, {})
    groups.sort(key=lambda group: (-len(group), min(keys[query] for query in group)))
    sizes, fold = [0] * folds, dict[str, int]()
    for group in groups:
        least = sizes.index(min(sizes))
        sizes[least] += len(group)
        fold.update(dict.fromkeys(group, least))
    return QueryFolds({query: fold[query] for query in queries}, apart, largest)


def _key(text: str, seed: int) -> bytes:
    seeded = f"{seed}\0{same_text_key(text)}"
    return hashlib.blake2b(seeded.encode("utf-8", "surrogatepass")).digest()


def _groups(queries: Mapping[str, str], keys: Mapping[str, bytes], qrels: Qrels) -> list[list[str]]:
    """Return the queries that texts and relevant documents chain together."""
    above = {query: query for query in queries}

    def root(query: str) -> str:
        while above[query] != query:
            above[query] = query = above[above[query]]
        return query

    holder: dict[object, str] = {}
    for query in queries:
        relevant = [doc for doc, grade in qrels.get(query, {}).items() if grade > 0]
        for what in (keys[query], *relevant):
            above[root(query)] = root(holder.setdefault(what, query))
    groups: dict[str, list[str]] = {}
    for query in queries:
        groups.setdefault(root(query), []).append(query)
    return list(groups.values())


GIVEN = "given"  # the list that is reranked
OF_LIST = ("score", "rank", "reciprocal_rank")
AT_ONCE = 64  # queries


class CandidateFeatures:
    """Computes features of candidates, given the retrievers that also score them.

    ``names`` are ``given.score``, ``given.rank`` and ``given.reciprocal_rank`` of the list that is
    reranked, those of ``lexical_features``, and ``NAME.score``, ``NAME.rank`` and
    ``NAME.reciprocal_rank`` for each of ``parts``. Ranks of a part, from 1, are among the
    candidates, so they say the same of lists of one depth only.

    Nothing but the query's text, its candidates and the corpus is looked at: no judgements, and no
    other query. ``saved`` is a folder of ``CollectionTerms``, used where it is of these documents;
    otherwise the corpus is read once, at the first query.
    """

    def __init__(
        self, parts: Sequence[Stage], *, language: str = "en", saved: Path | None = None
    ) -> None:
        self.parts = tuple(parts)
        self.language = language
        taken = {GIVEN, *(name.partition(".")[0] for name in LEXICAL)}
        for part in self.parts:
            if part.name in taken:
                raise ConfigError(
                    f"ltr: a part named {part.name!r}, which is the name of other features; give "
                    "each retriever a name of its own"
                )
            taken.add(part.name)
        sources = (GIVEN, *(part.name for part in self.parts))
        lists = [tuple(f"{source}.{name}" for name in OF_LIST) for source in sources]
        self.names: tuple[str, ...] = (
            *lists[0], *LEXICAL, *(name for each in lists[1:] for name in each)
        )  # fmt: skip
        self._saved = saved
        self._terms: tuple[tuple[str, str], CollectionTerms] | None = None

    def matrix(
        self, queries: Queries, heads: Mapping[str, Ranking], documents: Texts | None = None
    ) -> NDArray[np.float32]:
        """Return ``[candidates, features]``, the candidates of the first of ``heads`` first.

        ``documents`` is the store of titles and texts; without it, that of the first part that has
        one. Encodes each query once for each part.
        """
        names = list(heads)
        terms = self.terms(documents)
        store = self.store(documents)
        matrices = [np.empty((0, len(self.names)), np.float32)]
        for start in range(0, len(names), AT_ONCE):
            some = {query: heads[query] for query in names[start : start + AT_ONCE]}
            matrices.append(self._of_some(queries, some, terms, store))
        return np.concatenate(matrices)

    def _of_some(
        self,
        queries: Queries,
        heads: Mapping[str, Ranking],
        terms: CollectionTerms,
        store: DocumentStore,
    ) -> NDArray[np.float32]:
        sizes = [len(head) for head in heads.values()]
        ends = np.cumsum(sizes)
        rows = np.split(store.rows([d for h in heads.values() for d in h.doc_ids]), ends[:-1])
        place = np.concatenate([np.arange(size) for size in sizes]) + 1.0
        earlier = np.concatenate([head.scores for head in heads.values()])
        columns = [np.stack([earlier, place, 1.0 / place], axis=1)]
        columns.append(lexical_features(terms, [queries[query] for query in heads], rows))
        owner = np.repeat(np.arange(len(sizes)), sizes)
        for part in self.parts:
            scores = candidate_scores(part, queries, heads)
            order = np.lexsort((place, -scores, owner))
            rank = np.empty(len(scores))
            rank[order] = place  # of each list the first rank is 1, in the order of the lists
            columns.append(np.stack([scores, rank, 1.0 / rank], axis=1))
        return np.concatenate(columns, axis=1).astype(np.float32)

    def store(self, documents: Texts | None) -> DocumentStore:
        """Return the document store that titles and texts are read from."""
        for source in (documents, *(part.documents for part in self.parts)):
            if isinstance(source, DocumentStore):
                return source
        raise ConfigError(
            "ltr: no document store to count terms in; put it after a retriever, or name one as a "
            "part, as in ltr(bm25, ...)"
        )

    def terms(self, documents: Texts | None) -> CollectionTerms:
        """Return the terms of the corpus: the saved ones, or counted now and kept."""
        store = self.store(documents)
        key = (str(store.path), store.generation)
        if self._terms is None or self._terms[0] != key:
            self._terms = (key, self._count_terms(store))
        return self._terms[1]

    def _count_terms(self, store: DocumentStore) -> CollectionTerms:
        if self._saved is not None and self._saved.is_dir():
            terms = CollectionTerms.open(self._saved)
            if terms.fingerprint == store.fingerprint:
                return terms
        return collection_terms(store, self.language)


class Selected(NamedTuple):
    """Features by name, and the columns of the whole matrix they stand in."""

    names: tuple[str, ...]
    columns: NDArray[np.int64]


def selected(names: Sequence[str], patterns: Sequence[str] | None) -> Selected:
    """Return the features that one of ``patterns`` (``dense.*``, ``all.bm25``) matches.

    None takes all of them. ``ConfigError`` for a pattern that matches none.
    """
    from fnmatch import fnmatchcase

    from sluice.encoders.foundation.errors import suggest

    for pattern in patterns or ():
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(
                f"features: {pattern!r} matches no feature; known: {', '.join(names)}"
                f"{suggest(pattern, names)}"
            )
    keep = [
        column
        for column, name in enumerate(names)
        if patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)
    ]
    return Selected(tuple(names[column] for column in keep), np.array(keep, np.int64))


class LearnedReranker:
    """Scores each query's candidates by a trained ranker: a ``ListScorer``.

    ``stages`` are the retrievers it was trained with, in any order. The model's folder is opened,
    and checked against them, when the first candidates are scored. Where the corpus is the one of
    the training its terms are read from the folder; any other is counted once, in memory.
    """

    def __init__(self, stages: tuple[Stage, ...], model: str | Path) -> None:
        self.stages = stages
        self.path = Path(model)
        self._features = CandidateFeatures(stages)  # names that clash are refused at once
        self._ranker: LearnedRanker | None = None
        self._lock = OwnLock()

    def score_lists(
        self, queries: Queries, heads: Mapping[str, Ranking], documents: Texts | None
    ) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
        """Return each candidate's score, query by query."""
        ranker, features = self._open_model(documents)
        matrix = features.matrix(queries, heads, documents)
        scores = ranker.score(matrix[:, ranker.columns(features.names)])
        ends = np.cumsum([len(head) for head in heads.values()])
        return dict(zip(heads, np.split(scores, ends[:-1]), strict=True))

    def _open_model(self, documents: Texts | None) -> tuple[LearnedRanker, CandidateFeatures]:
        with self._lock:  # threads that search meanwhile count the corpus once
            if self._ranker is None:
                ranker = LearnedRanker.open(self.path)
                ranker.check_parts(self.stages)
                self._features = CandidateFeatures(
                    self.stages, language=ranker.language, saved=self.path / TERMS
                )
                ranker.columns(self._features.names)
                self._ranker = ranker
            self._features.terms(documents)
            return self._ranker, self._features


def ltr(
    *stages: Stage, model: Annotated[str, "The folder that `sluice fit ranker` wrote."]
) -> LearnedReranker:
    """``ltr(bm25, dense, model='runs/ltr', depth=200)`` of a pipeline: see ``LearnedReranker``."""
    for stage in stages:
        if not isinstance(stage, Stage):
            raise ConfigError(
                f"ltr takes retrievers, not a {type(stage).__name__}: their scores are features"
            )
    if not model:
        raise ConfigError("ltr: no model; expected the folder that sluice fit ranker wrote")
    return LearnedReranker(stages, model)
