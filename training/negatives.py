"""Hard negatives chosen from ranked lists: pure functions over ids, scores and known positives."""

from __future__ import annotations

import math
import random
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from encoders.errors import ConfigError, DataError
from training.mining_report import MinedNegatives, MiningReport, Provenance

Ranked = Mapping[str, Sequence[tuple[str, float]]]  # query id -> (document id, score), best first
Grades = Mapping[str, Mapping[str, float]]  # query id -> document id -> grade
PositiveScores = Mapping[str, Mapping[str, float]] | Callable[[str, str], float | None]


@dataclass(frozen=True, slots=True)
class Mining:
    """Which candidates of a ranked list become negatives; the arguments are the YAML's keys.

    With s+ the score of the query's positive (the lowest, of several), a candidate of score s stays
    if all hold that are set:

    - ``max_positive_ratio`` p: ``s < s+ - |s+| (1 - p)`` (TopK-PercPos; null switches it off)
    - ``margin`` m: ``s < s+ - m`` (TopK-MarginPos)
    - ``max_score``: ``s < max_score`` (TopK-Abs); ``min_score``: ``s >= min_score``
    - ``range_min <= rank < range_max``, ranks from 0 with the known positives taken out: skipping
      the first N is shifted mining, a window with ``sampling: random`` is KaLM's.

    Then the first ``per_query`` are taken (``top``), or as many at random, by seed and query id.
    Moreira et al. 2024 (NV-Retriever), section 3.
    """

    per_query: int = 4
    max_positive_ratio: float | None = 0.95
    margin: float | None = None
    max_score: float | None = None
    min_score: float | None = None
    range_min: int = 0
    range_max: int | None = None
    sampling: Literal["top", "random"] = "top"

    def __post_init__(self) -> None:
        if self.per_query < 1:
            raise ConfigError(f"negatives.per_query: {self.per_query}, expected 1 or more")
        for name in ("max_positive_ratio", "margin", "max_score", "min_score"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ConfigError(
                    f"negatives.{name}: {value}, expected a finite number, or null for no limit"
                )
        if self.max_positive_ratio is not None and not self.max_positive_ratio > 0:
            raise ConfigError(
                f"negatives.max_positive_ratio: {self.max_positive_ratio}, expected above 0 "
                "(0.95 is usual), or null for no such limit"
            )
        if self.range_min < 0:
            raise ConfigError(f"negatives.range_min: {self.range_min}, expected 0 or more")
        if self.range_max is not None and self.range_max - self.range_min < self.per_query:
            raise ConfigError(
                f"negatives: ranks {self.range_min} to {self.range_max} hold fewer than "
                f"per_query {self.per_query} candidates; widen the range or ask for fewer"
            )
        if self.sampling not in ("top", "random"):
            raise ConfigError(f"negatives.sampling: {self.sampling!r}, expected 'top' or 'random'")

    @property
    def needs_positive_score(self) -> bool:
        """Whether any limit depends on the positive's own score."""
        return self.max_positive_ratio is not None or self.margin is not None


class _Limit(NamedTuple):
    reason: str
    passes: Callable[[float], bool]


def mine(
    ranked: Ranked,
    positives: Grades,
    mining: Mining,
    *,
    positive_scores: PositiveScores | None = None,
    texts: Mapping[str, str] | None = None,
    seed: int = 13,
    provenance: bool = True,
) -> MinedNegatives:
    """Choose negatives for every query of ``positives`` from its ranked list.

    Known positives (grade above 0) are always dropped. A positive's score is the one it has in the
    list, else the one ``positive_scores`` gives; positives with neither are left out of the
    minimum, and a query left without any has no ratio or margin limit: the report counts both. With
    ``texts`` (by document id) a candidate whose text, up to case and spaces, is a positive's or an
    earlier candidate's is dropped. ``provenance=False`` keeps no row per candidate (memory).

    Raises ``DataError`` for a score that is not a number, a positive's that is not finite, or a
    list that is not best first or names a document twice.
    """
    negatives: dict[str, tuple[str, ...]] = {}
    rows: list[Provenance] = []
    dropped: Counter[str] = Counter()
    short: dict[str, int] = {}
    unscored_positives = unscored_queries = shared = candidates = 0
    for query, grades in positives.items():
        known = {doc for doc, grade in grades.items() if grade > 0}
        if not known:
            continue
        hits = ranked.get(query, ())
        _check(query, hits)
        lowest, missing = _lowest(query, known, hits, positive_scores)
        unscored_positives += missing
        unscored_queries += lowest is None and mining.needs_positive_score
        reasons = _judge(hits, known, _limits(mining, lowest), mining, texts)
        chosen = _choose([p for p, reason in enumerate(reasons) if not reason], mining, seed, query)
        for place, (document, score) in enumerate(hits):
            reason = reasons[place] or ("kept" if place in chosen else "surplus")
            dropped[reason] += 1
            if provenance:
                rows.append(Provenance(query, document, place, score, reason))
        found = tuple(hits[place][0] for place in sorted(chosen))
        negatives[query] = found
        candidates += len(hits)
        shared += len(known.intersection(found))
        if len(found) < mining.per_query:
            short[query] = mining.per_query - len(found)
    kept = dropped.pop("kept", 0)
    report = MiningReport(
        queries=len(negatives),
        candidates=candidates,
        kept=kept,
        dropped=dict(sorted(dropped.items())),
        short=short,
        queries_without_hits=sum(not ranked.get(query) for query in negatives),
        unscored_positives=unscored_positives,
        queries_without_positive_score=unscored_queries,
        positive_share=shared / kept if kept else 0.0,
    )
    return MinedNegatives(negatives, tuple(rows), report)


def _check(query: str, hits: Sequence[tuple[str, float]]) -> None:
    previous = math.inf
    seen: set[str] = set()
    for document, score in hits:
        if document in seen:
            raise DataError(
                f"ranked list of query {query!r}: document {document!r} stands there twice; "
                "expected each document once, at its best rank"
            )
        seen.add(document)
        if not score <= previous:
            raise DataError(
                f"ranked list of query {query!r}: document {document!r} has score {score}, after "
                f"{previous}; expected numbers, best first"
            )
        previous = score


def _lowest(
    query: str,
    known: set[str],
    hits: Sequence[tuple[str, float]],
    given: PositiveScores | None,
) -> tuple[float | None, int]:
    """The lowest score of a positive, and how many positives have none."""
    scores = {document: score for document, score in hits if document in known}
    for document in known - set(scores):
        if given is None:
            continue
        score = given(query, document) if callable(given) else given.get(query, {}).get(document)
        if score is not None:
            scores[document] = score
    for document, score in scores.items():
        if not math.isfinite(score):
            raise DataError(
                f"query {query!r}: its positive {document!r} has score {score}, expected a finite "
                "number; check the encoder or run that scored it"
            )
    return min(scores.values(), default=None), len(known) - len(scores)


def _limits(mining: Mining, positive: float | None) -> list[_Limit]:
    limits = []
    ratio, margin = mining.max_positive_ratio, mining.margin
    if positive is not None and ratio is not None:
        # Not positive * ratio, which would lie above a negative score.
        below = positive - abs(positive) * (1 - ratio)
        limits.append(_Limit("ratio", lambda score: score < below))
    if positive is not None and margin is not None:
        edge = positive - margin
        limits.append(_Limit("margin", lambda score: score < edge))
    if mining.max_score is not None:
        top = mining.max_score
        limits.append(_Limit("max_score", lambda score: score < top))
    if mining.min_score is not None:
        bottom = mining.min_score
        limits.append(_Limit("min_score", lambda score: score >= bottom))
    return limits


def _judge(
    hits: Sequence[tuple[str, float]],
    known: set[str],
    limits: Sequence[_Limit],
    mining: Mining,
    texts: Mapping[str, str] | None,
) -> list[str]:
    """For each hit the reason to drop it, or an empty string."""
    positive_texts = {normalised(texts[doc]) for doc in known if doc in texts} if texts else set()
    seen: set[str] = set()
    end = math.inf if mining.range_max is None else mining.range_max
    reasons: list[str] = []
    rank = -1
    for document, score in hits:
        if document in known:
            reasons.append("positive")
            continue
        rank += 1
        reason = "" if mining.range_min <= rank < end else "rank"
        reason = reason or next((x.reason for x in limits if not x.passes(score)), "")
        if not reason and texts is not None and document in texts:
            text = normalised(texts[document])
            if text in positive_texts:
                reason = "positive_text"
            elif text in seen:
                reason = "duplicate_text"
            seen.add(text)
        reasons.append(reason)
    return reasons


def _choose(places: list[int], mining: Mining, seed: int, query: str) -> set[int]:
    if mining.sampling == "top" or len(places) <= mining.per_query:
        return set(places[: mining.per_query])
    return set(random.Random(f"{seed}:{query}").sample(places, mining.per_query))


def normalised(text: str) -> str:
    """Return the text without differences of case, spacing and Unicode form."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def consistent(ranked: Ranked, positives: Grades, depth: int = 50) -> Iterator[tuple[str, str]]:
    """Yield the (query, positive) pairs whose positive stands among the query's first ``depth``.

    Training on these only is KaLM's ranking-consistency filter.
    """
    for query, grades in positives.items():
        first = {document for document, _ in ranked.get(query, ())[:depth]}
        yield from ((query, doc) for doc, grade in grades.items() if grade > 0 and doc in first)
