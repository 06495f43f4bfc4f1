"""Reranking: a scorer reads each query with its best candidates and reorders those."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from encoders.errors import ConfigError, DataError
from indexing.whole import whole_number
from retrieval.ranking import Ranking, Run
from retrieval.stage import Queries, Stage, Texts

if TYPE_CHECKING:
    from retrieval.where import Where


class Scorer(Protocol):
    """Anything that scores (query, document) pairs: a cross-encoder, a model of your own."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> Any:
        """Return one finite number per pair, higher is better."""
        ...


class Rerank(Stage):
    """Reorder the first ``depth`` documents of each query by a scorer.

    Documents below the depth keep their order; their scores are shifted under the reranked
    minimum, so that scores still decrease. Documents that the scorer ties keep the order they had.
    ``depth=0`` is the identity. ``interpolate`` is the share of the earlier score in the new one,
    both as z-scores over the query's head: 0, the default, leaves it all to the scorer. Texts come
    from ``documents``, or from the store of the stage before it in a pipeline.
    """

    def __init__(
        self,
        scorer: Scorer,
        depth: int = 100,
        *,
        interpolate: float = 0.0,
        documents: Texts | None = None,
        name: str = "",
    ) -> None:
        share = interpolate if isinstance(interpolate, (int, float)) else -1.0
        if isinstance(interpolate, bool) or not 0.0 <= share <= 1.0:
            raise ConfigError(f"interpolate: {interpolate!r}; expected a share from 0 to 1")
        if not callable(getattr(scorer, "score", None)):
            raise ConfigError(
                f"Rerank: {type(scorer).__name__} has no score(pairs) method; "
                "expected a CrossEncoder or an object like it"
            )
        self.scorer = scorer
        self.depth = whole_number(depth, "depth", 0)
        self.interpolate = float(interpolate)
        self.name = name or f"{type(scorer).__name__}(depth={depth})"
        self._documents = documents

    def attached(self, documents: Texts) -> Stage:
        """Return the reranker with a store, unless it has its own."""
        if self._documents is not None:
            return self
        return Rerank(
            self.scorer,
            self.depth,
            interpolate=self.interpolate,
            documents=documents,
            name=self.name,
        )

    def filtered(self, where: Where) -> Stage:
        """Return the reranker itself: its candidates were filtered before."""
        return self

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Rerank the given run; queries it lacks get an empty ranking."""
        if given is None:
            raise ConfigError(
                f"{self.name}: a reranker needs candidates; put a retriever before it: "
                "retriever >> reranker"
            )
        empty = Ranking([], [])
        rankings = {query: given.get(query, empty) for query in queries}
        heads = {query: ranking[: self.depth] for query, ranking in rankings.items()}
        scores = self._scored(queries, heads)
        merged, start = {}, 0
        for query, ranking in rankings.items():
            stop = start + len(heads[query])
            found = scores[start:stop]
            if self.interpolate:
                given_scores = z_scores(heads[query].scores)
                found = (1 - self.interpolate) * z_scores(found) + self.interpolate * given_scores
            merged[query] = _merged(ranking, found.astype(np.float32))
            start = stop
        return Run(merged, name=self.name)

    def _scored(self, queries: Queries, heads: dict[str, Ranking]) -> np.ndarray:
        pairs: list[tuple[str, str]] = []
        if any(len(head) for head in heads.values()):
            if self._documents is None:
                raise ConfigError(
                    f"{self.name}: needs the documents' texts; pass documents=, or compose it "
                    "behind a retriever with a document store"
                )
            wanted = list(dict.fromkeys(doc for head in heads.values() for doc in head.doc_ids))
            texts = dict(zip(wanted, self._documents.texts(wanted), strict=True))
            for query, head in heads.items():
                pairs += [(queries[query], texts[doc]) for doc in head.doc_ids]
        scores = np.asarray(self.scorer.score(pairs) if pairs else [], np.float32)
        if scores.shape != (len(pairs),):
            raise DataError(
                f"{self.name}: returned scores of shape {scores.shape} for {len(pairs)} pairs"
            )
        bad = np.flatnonzero(~np.isfinite(scores))
        if len(bad):
            raise DataError(
                f"{self.name}: score {scores[bad[0]]} for the query {pairs[bad[0]][0]!r}; "
                "a scorer must return finite numbers"
            )
        return scores


def z_scores(scores: np.ndarray) -> np.ndarray:
    """Return scores less their mean, over their deviation; zeros where all are the same."""
    values = scores.astype(np.float64)
    if len(values) == 0 or values.min() == values.max():
        return np.zeros(len(values))
    centred = values - values.mean()
    scaled: np.ndarray = centred / np.sqrt(np.mean(centred**2))
    return scaled


def _merged(ranking: Ranking, scores: np.ndarray) -> Ranking:
    """Return the ranking with its head reordered by ``scores`` and its tail shifted under it."""
    depth = len(scores)
    if depth == 0:
        return ranking
    order = np.argsort(-scores, kind="stable")
    doc_ids = [ranking.doc_ids[place] for place in order]
    tail = ranking[depth:]
    if len(tail) == 0:
        return Ranking(doc_ids, scores[order])
    lowest = np.finfo(np.float32).min
    ceiling = np.nextafter(scores.min(), np.float32("-inf"))
    shifted = np.maximum(tail.scores - tail.scores.max() + ceiling, lowest)
    return Ranking([*doc_ids, *tail.doc_ids], np.concatenate([scores[order], shifted]))
