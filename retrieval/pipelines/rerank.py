"""Reranking: a scorer looks at each query's best candidates, and those are reordered."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import finite_number, is_number, whole_number
from sluice.encoders.foundation.tokens import TokenCounts, counting_tokens
from sluice.encoders.objects import as_scorer
from sluice.retrieval.evaluation.calibration_error import probabilities
from sluice.retrieval.pipelines.hit import PartScore, Passage, TokenMatch
from sluice.retrieval.pipelines.saving import NameOf, options_text
from sluice.retrieval.pipelines.scorer import ScorerHooks, ScorerLike, Scores
from sluice.retrieval.pipelines.search import TextsOf, documents_in, seconds_left
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.pipelines.table import OF_STAGES, STAGES
from sluice.retrieval.pipelines.tracing import SCORED_PASSAGES, Span, note
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking, Run

if TYPE_CHECKING:
    from sluice.retrieval.documents.where import Where

log = logging.getLogger("sluice")

AT_ONCE = 16  # pairs between two looks at the clock
FIRST_UNDER_A_LIMIT = 4  # of a search with a time limit: their pace tells how many more fit
OUT_OF_TIME = "out of time"  # a fact of a search with a limit: query to candidates not scored


class DepthRule(Protocol):
    """Says for one query how many of its candidates are worth reranking."""

    def depth(self, ranking: Ranking) -> int:
        """Return how many, 0 for none; the reranker's own depth is never exceeded."""
        ...


@runtime_checkable
class QueryRule(Protocol):
    """Says which queries need no reranking, by the queries and not by their candidates."""

    def check(self, first: Stage) -> None:
        """Raise ``ConfigError`` where it cannot say after this stage."""
        ...

    def sure(self, queries: Queries, first: Stage) -> Collection[str]:
        """Return the queries that skip a reranker after ``first``."""
        ...


class Rerank(Stage):
    """Reorder the first ``depth`` documents of each query by a scorer.

    ``scorer`` has ``score(pairs)`` or ``score_lists``; or it is a function of (query, document)
    pairs, or of a query and texts, a sentence-transformers ``CrossEncoder``, or a cross-encoder's
    folder or hub id.

    Documents below the depth keep their order; their scores are shifted under the reranked
    minimum, so that scores still decrease. Documents that the scorer ties keep the order they had.
    ``depth=0`` is the identity. ``interpolate`` is the share of the earlier score in the new one,
    both as z-scores over the query's head: 0, the default, leaves it all to the scorer. Texts come
    from ``documents``, or from the store of the stage before it in a pipeline.

    ``rules`` make the depth smaller query by query. With ``deadline_ms`` no more pairs of a query
    are scored when that many milliseconds have gone, or the next few would exceed them: the others
    stay below, in the order they had. List scorers cannot stop early, so a deadline is refused.

    ``fitted`` is the file that depth and interpolation are from, and the ``leaves`` of the stage
    that they were fitted over: ``check_first`` refuses another.

    The ``time_limit`` of a search stops it too, or a list scorer from starting.

    ``with_probability`` makes its scores probabilities, in the same order. Documents that were not
    scored then have less than the least of those that were, and 0 where none was.
    """

    needs_candidates = True
    probability: tuple[float, float] | None = None  # scale and bias

    def __init__(
        self,
        scorer: ScorerLike,
        depth: int = 100,
        *,
        interpolate: float = 0.0,
        documents: Texts | None = None,
        name: str = "",
        rules: Sequence[DepthRule | QueryRule] = (),
        deadline_ms: float | None = None,
        fitted: tuple[str, Collection[str]] | None = None,
    ) -> None:
        if not is_number(interpolate) or not 0 <= interpolate <= 1:
            raise ConfigError(f"interpolate: {interpolate!r}; expected a share from 0 to 1")
        scorer = as_scorer(scorer)
        hooks = ScorerHooks(scorer)
        self._of_lists = hooks.scores_lists
        if deadline_ms is not None and not (is_number(deadline_ms) and deadline_ms > 0):
            raise ConfigError(f"deadline_ms: {deadline_ms!r}; expected milliseconds above 0")
        if deadline_ms is not None and self._of_lists:
            raise ConfigError(
                f"deadline_ms: {type(scorer).__name__} scores each list as a whole and cannot stop "
                "early; leave deadline_ms out, or use a scorer of pairs"
            )
        self.scorer: Any = scorer
        self.depth = whole_number(depth, "depth", 0)
        self.interpolate = float(interpolate)
        self.name = name or f"{hooks.name}(depth={depth})"
        self.rules = tuple(rules)
        self._query_rules = [rule for rule in self.rules if isinstance(rule, QueryRule)]
        self._depth_rules = [rule for rule in self.rules if not isinstance(rule, QueryRule)]
        self.deadline_ms = deadline_ms
        self.fitted = fitted
        self._documents = documents
        self._told = False  # that pairs were cut

    @property
    def inner(self) -> tuple[Stage, ...]:
        """The retrievers that the scorer looks into."""
        return ScorerHooks(self.scorer).stages

    @property
    def leaves(self) -> frozenset[str]:
        """Its own name: what its scorer looks into finds no documents."""
        return frozenset([self.name.partition("(")[0]])

    @property
    def ranking_models(self) -> tuple[Any, ...]:
        """The scorer alone: a reranker holds no other model."""
        return (self.scorer,)

    @property
    def gives_probabilities(self) -> bool:
        """Whether its scores are fitted probabilities."""
        return self.probability is not None

    def with_probability(self, scale: float, bias: float) -> Rerank:
        """Return the reranker with the scores ``sigmoid(scale * score + bias)``, 0 to 1.

        ``ConfigError`` where a score is no longer the scorer's own, or not all are scored.
        """
        settings = {"interpolate": self.interpolate, "deadline_ms": self.deadline_ms,
                    "the rule of its depth": self.rules}  # fmt: skip
        for setting, value in settings.items():
            if value:
                raise ConfigError(
                    f"{self.name}: a probability is that of the scorer's own score, of all "
                    f"documents to the depth; leave {setting} out, or probability"
                )
        copied = copy.copy(self)
        copied.probability = finite_number(scale, "scale", 0), finite_number(bias, "bias")
        return copied

    def over(self, inner: Sequence[Stage]) -> Stage:
        """Return the reranker itself: a scorer keeps the retrievers it was made with."""
        return self

    def check_first(self, first: Stage) -> None:
        """Raise ``ConfigError`` for a stage that its settings are not for.

        It has other parts than they were fitted over, or a rule of queries cannot say after it.
        """
        file, known = self.fitted or ("", ())
        parts = first.leaves
        if known and parts and set(known) != parts:
            raise ConfigError(
                f"fitted={file!r}: was fitted over {', '.join(sorted(known))} and not over "
                f"{', '.join(sorted(parts))}: it is the file of another pipeline; fit it again "
                "with `sluice fit rerank`"
            )
        for rule in self._query_rules:
            rule.check(first)

    def attached(self, documents: Texts) -> Stage:
        """Return the reranker with a store, unless it has its own.

        ``ConfigError`` where the scorer knows that it cannot score these documents.
        """
        if self._documents is not None:
            return self
        store = documents.store if isinstance(documents, TextsOf) else documents
        ScorerHooks(self.scorer).check_documents(store)
        copied = copy.copy(self)
        copied._documents = documents
        return copied

    def written(self, name_of: NameOf) -> str:
        """Return ``scorer(depth=..)`` with its options, ``max_sim(tokens, depth=..)``.

        ``ConfigError`` for rules of its depth, and for scorers that read retrievers and more.
        """
        options: dict[str, Any] = {"depth": self.depth}
        if self.interpolate:
            options["interpolate"] = self.interpolate
        if self.deadline_ms is not None:
            options["deadline_ms"] = self.deadline_ms
        names = (name for name in OF_STAGES if resolve(STAGES[name]) is type(self.scorer))
        function = next(names, None) if self.inner else ""
        if self.rules or self.probability or function is None:
            what = "a rule of its depth" if self.rules else "retrievers of its scorer"
            what = "a fitted probability" if self.probability else what
            raise ConfigError(
                f"{self.name}: cannot be saved with {what}; write it under pipelines: of an "
                "experiment, which load_pipeline opens"
            )
        parts = [*(stage.written(name_of) for stage in self.inner), options_text(options)]
        return f"{function or name_of(self.scorer)}({', '.join(parts)})"

    def filtered(self, where: Where) -> Stage:
        """Return the reranker itself: its candidates were filtered before."""
        return self

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Rerank the given run; queries it lacks get an empty ranking."""
        if given is None:
            raise ConfigError(
                f"{self.name}: a reranker needs candidates; put a retriever before it: "
                "retriever >> reranker"
            )
        empty = Ranking([], [])
        rankings = {query: given.get(query, empty) for query in queries}
        sure = self._sure(queries)
        heads = {
            query: ranking[: 0 if query in sure else self._depth(ranking)]
            for query, ranking in rankings.items()
        }
        with counting_tokens() as counts:
            scored = self._scored(queries, {q: head for q, head in heads.items() if len(head)})
        note({"pairs": {query: len(scored.get(query, ())) for query in heads}})
        if seconds_left() is not None:
            left = {query: len(head) - len(scored.get(query, ())) for query, head in heads.items()}
            note({OUT_OF_TIME: {query: count for query, count in left.items() if count}})
        self._say_cuts(counts, sum(map(len, scored.values())), queries=len(heads))
        results = {}
        for query, ranking in rankings.items():
            scores = scored.get(query, np.zeros(0, np.float32))
            if self.interpolate:
                earlier = z_scores(ranking.scores[: len(scores)])
                mixed = (1 - self.interpolate) * z_scores(scores) + self.interpolate * earlier
                scores = mixed.astype(np.float32)
            results[query] = merged(ranking, scores)
            if self.probability is not None:
                results[query] = _likely(results[query], len(scores), *self.probability)
        return Run(results, name=self.name)

    @property
    def names_passages(self) -> bool:
        """Whether its scorer may score documents by their passages."""
        return True

    def passages_of(self, query: str, doc_ids: Sequence[str], span: Span) -> list[Passage | None]:
        """Return the passage that the scorer scored best, None where it scored no passages."""
        scored = (span.passage_notes or {}).get(SCORED_PASSAGES, {})
        passages: list[Passage | None] = [None] * len(doc_ids)
        for place, document in enumerate(documents_in(self._documents, doc_ids) if scored else ()):
            if document.full_text in scored:
                number, *characters = scored[document.full_text]
                start, end = document.own_characters(*characters)
                passages[place] = Passage(number, start, end, document.text[start:end])
        return passages

    @property
    def approximates(self) -> Stage | None:
        """The retriever that scores all documents as the scorer does its candidates, or None.

        Its exact search tells which of the best documents the candidates miss.
        """
        return ScorerHooks(self.scorer).approximates

    def matches_of(self, query: str, doc_id: str) -> Sequence[TokenMatch]:
        """Return which tokens met, of a scorer that compares tokens."""
        return ScorerHooks(self.scorer).matches_of(query, doc_id, self._documents)

    def parts_of(self, query: str, doc_id: str) -> Sequence[PartScore]:
        """Return the parts of a document, of a scorer that scores them one by one."""
        return ScorerHooks(self.scorer).parts_of(query, doc_id, self._documents)

    def _depth(self, ranking: Ranking) -> int:
        return max(0, min([self.depth, *(rule.depth(ranking) for rule in self._depth_rules)]))

    def _sure(self, queries: Queries) -> Collection[str]:
        """Return the queries that a rule of queries leaves as they are."""
        if not self._query_rules:
            return ()
        if not isinstance(self._documents, TextsOf) or not isinstance(self._documents.stage, Stage):
            raise ConfigError(
                f"{self.name}: its exit asks the retriever before it; compose it, retriever >> "
                "reranker, without documents="
            )
        first = self._documents.stage
        return set().union(*(rule.sure(queries, first) for rule in self._query_rules))

    def _scored(self, queries: Queries, heads: dict[str, Ranking]) -> dict[str, Scores]:
        """Return the scores of each query's head, or of its first documents under a deadline."""
        remaining = seconds_left()
        if not heads or (remaining is not None and remaining <= 0):
            return {}
        if self._of_lists:
            documents = self._documents
            if isinstance(documents, TextsOf):
                documents = documents.store
            lists = self.scorer.score_lists(queries, heads, documents)
            return {query: self._list_scores(lists, query, head) for query, head in heads.items()}
        if self._documents is None:
            raise ConfigError(
                f"{self.name}: needs the documents' texts; pass documents=, or compose it "
                "after a retriever with a document store"
            )
        doc_ids = list(chain.from_iterable(head.doc_ids for head in heads.values()))
        by_id: dict[str, Any] = dict.fromkeys(doc_ids)  # each document is read once
        by_id.update(zip(by_id, self._documents.texts(list(by_id)), strict=True))
        repeated = chain.from_iterable(repeat(queries[q], len(head)) for q, head in heads.items())
        pairs = list(zip(repeated, map(by_id.__getitem__, doc_ids), strict=True))
        ends = list(accumulate(map(len, heads.values())))
        if self.deadline_ms is not None or remaining is not None:
            spans = zip(heads, [0, *ends], ends, strict=False)
            return {query: self._in_time(pairs[start:end]) for query, start, end in spans}
        scores = self._pair_scores(pairs)
        return dict(zip(heads, np.split(scores, ends[:-1]), strict=True))

    def _say_cuts(self, counts: list[TokenCounts], pairs: int, *, queries: int) -> None:
        """Note how many pairs were cut at the scorer's limit, and log it for a run of queries.

        For single queries, as in an interactive search, the first cut is logged alone.
        """
        counted = TokenCounts.joined(counts, pairs)
        cut = 0 if counted is None else int((counted.full > counted.read).sum())
        if counted is None or not cut:
            return
        note({"pairs cut": cut})
        if queries > 1 or not self._told:
            log.warning(
                "%s: %s of %s pairs exceed %s tokens and are cut; wrap the reranker in "
                "passages(...) to read everything",
                self.name, f"{cut:,}", f"{pairs:,}", f"{int(counted.read.max()):,}",
            )  # fmt: skip
        self._told = True

    def _in_time(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """Score pairs few by few, as long as the next few can be expected to be done in time."""
        limit = np.inf if self.deadline_ms is None else float(self.deadline_ms) / 1000
        scores: list[Scores] = [np.zeros(0, np.float32)]
        start, took, place = time.perf_counter(), 0.0, 0
        at_once = AT_ONCE if seconds_left() is None else FIRST_UNDER_A_LIMIT
        while place < len(pairs):
            before = time.perf_counter()
            remaining = seconds_left()
            if place and before - start + took > limit:
                break
            if remaining is not None and remaining < took:
                break
            scores.append(self._pair_scores(pairs[place : place + at_once]))
            took = time.perf_counter() - before
            place += at_once
        return np.concatenate(scores)

    def _list_scores(self, lists: Mapping[str, Any], query: str, head: Ranking) -> Scores:
        if query not in lists:
            raise DataError(f"{self.name}: returned no scores for query {query!r}")
        return self._finite(lists[query], len(head), "candidates", lambda _: f"query {query!r}")

    def _pair_scores(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        returned = self.scorer.score(pairs)
        return self._finite(returned, len(pairs), "pairs", lambda i: f"the query {pairs[i][0]!r}")

    def _finite(self, returned: Any, count: int, what: str, of: Any) -> Scores:
        try:
            with np.errstate(over="ignore"):
                scores = np.asarray(returned, np.float32)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{self.name}: the scorer returned {type(returned).__name__}, not a list of "
                f"numbers ({error})"
            ) from None
        if scores.shape != (count,):
            raise DataError(
                f"{self.name}: returned scores of shape {scores.shape} for {count} {what}"
            )
        bad = np.flatnonzero(~np.isfinite(scores))
        if len(bad):
            raise DataError(
                f"{self.name}: score {scores[bad[0]]} for {of(bad[0])}; "
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


def _likely(ranking: Ranking, scored: int, scale: float, bias: float) -> Ranking:
    """Return the ranking in its order with probabilities, of which some documents were scored."""
    if not scored:
        return Ranking(ranking.doc_ids, np.zeros(len(ranking), np.float32))
    likely = probabilities(ranking.scores.astype(np.float64), scale, bias)
    return Ranking(ranking.doc_ids, likely.astype(np.float32))


def merged(ranking: Ranking, scores: Scores) -> Ranking:
    """Return the ranking with its head reordered by ``scores`` and its tail shifted under it."""
    depth = len(scores)
    if depth == 0:
        return ranking
    order = np.argsort(-scores, kind="stable")
    doc_ids = list(map(ranking.doc_ids.__getitem__, order.tolist()))
    if depth == len(ranking):
        return Ranking(doc_ids, scores[order])
    tail = ranking[depth:]
    lowest = np.finfo(np.float32).min
    ceiling = np.nextafter(scores.min(), np.float32("-inf"))
    shifted = np.maximum(tail.scores - tail.scores.max() + ceiling, lowest)
    return Ranking([*doc_ids, *tail.doc_ids], np.concatenate([scores[order], shifted]))
