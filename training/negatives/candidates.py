"""The candidates of one query in its lists, the limits of their scores, and which are taken."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError
from sluice.training.negatives.false_negatives import (
    EMPTY,
    Judge,
    JudgedPair,
    TextKeys,
    TextSource,
    judged,
    texts_of,
)
from sluice.training.negatives.provenance import CODES
from sluice.training.negatives.settings import Mining

Ranked = Mapping[str, Sequence[tuple[str, float]]]  # query id -> (document id, score), best first
Grades = Mapping[str, Mapping[str, float]]  # query id -> document id -> grade
PositiveScores = Mapping[str, Mapping[str, float]] | Callable[[str, str], float | None]
FITS = CODES["kept"]


@dataclass(slots=True)
class Listed:
    """One list's candidates of a query: ``places[i]`` is hit i's place among the query's own.

    ``known`` has the known positives' scores by document, the list's own and those supplied,
    ``positive`` the one that limits are set by, NaN if there is none.
    """

    places: NDArray[np.int64]
    scores: NDArray[np.float64]
    known: dict[str, float]
    positive: float


@dataclass(slots=True)
class Candidates:
    """A query's candidates, each once, by the best rank any list gives them.

    ``reasons`` are codes of ``REASONS``, ``ranks`` the best ranks with known positives taken out,
    ``ratios`` the highest ``1 + (s - s+) / |s+|`` (NaN for none), ``judged`` the judge's scores
    (NaN for none), ``judged_positives`` those of known positives.
    """

    query: str
    known: Sequence[str]
    documents: Sequence[str]
    lists: list[Listed]
    reasons: NDArray[np.int8]
    ranks: NDArray[np.int32]
    ratios: NDArray[np.float64]
    judged: NDArray[np.float64]
    judged_positives: dict[str, float] = field(default_factory=dict)

    @property
    def fitting(self) -> list[int]:
        """The places of those that no limit has dropped yet."""
        places: list[int] = np.flatnonzero(self.reasons == FITS).tolist()
        return places


def candidates_of(
    query: str,
    known: Sequence[str],
    lists: Sequence[Sequence[tuple[str, float]]],
    positive_scores: Sequence[PositiveScores | None],
    mining: Mining,
) -> Candidates:
    """Return the candidates in the lists of one query, judged by rank and scores.

    A candidate must fit the limits in every list that found it; the reason is that of the first
    list where it does not. ``positive_scores`` has for each
    list the scores of positives that it lacks.
    """
    columns = [_columns(query, hits) for hits in lists]
    documents, places = _merge([names for names, _ in columns])
    positives = set(known)
    is_known = np.fromiter((doc in positives for doc in documents), bool, len(documents))
    candidates = Candidates(
        query,
        known,
        documents,
        [],
        np.where(is_known, CODES["positive"], FITS).astype(np.int8),
        np.full(len(documents), np.iinfo(np.int32).max, np.int32),
        np.full(len(documents), np.nan),
        np.full(len(documents), np.nan),
    )
    for (_, scores), where, extra in zip(columns, places, positive_scores, strict=True):
        hits = np.flatnonzero(is_known[where]).tolist()
        own = {documents[int(where[hit])]: float(scores[hit]) for hit in hits}
        known_scores = _with_given(query, known, own, extra)
        positive = mining.reference(known_scores.values())
        listed = Listed(where, scores, known_scores, positive)
        candidates.lists.append(listed)
        _limit(candidates, listed, is_known[where], mining)
    return candidates


@runtime_checkable
class Columns(Protocol):
    """A ranked list that holds its ids and scores apart, as ``Ranking`` does."""

    doc_ids: Sequence[str]
    scores: Any


def _columns(
    query: str, hits: Sequence[tuple[str, float]]
) -> tuple[Sequence[str], NDArray[np.float64]]:
    """Return a list's ids and scores, checked: each document once, numbers, best first."""
    if isinstance(hits, Columns):
        names, values = hits.doc_ids, hits.scores
    else:
        names, values = [name for name, _ in hits], [score for _, score in hits]
    scores = np.asarray(values, np.float64)
    falling = not np.isnan(scores[:1]).any() and bool((scores[1:] <= scores[:-1]).all())
    if not falling or len(set(names)) != len(names):
        _refuse(query, names, scores.tolist())
    return names, scores


def _refuse(query: str, names: Sequence[str], scores: Sequence[float]) -> None:
    previous = math.inf
    seen: set[str] = set()
    for document, score in zip(names, scores, strict=True):
        if document in seen:
            raise DataError(
                f"ranked list of query {query!r}: document {document!r} occurs twice; "
                "expected each document once, at its best rank"
            )
        seen.add(document)
        if not score <= previous:
            raise DataError(
                f"ranked list of query {query!r}: document {document!r} has score {score}, after "
                f"{previous}; expected numbers, best first"
            )
        previous = score


def _merge(lists: Sequence[Sequence[str]]) -> tuple[Sequence[str], list[NDArray[np.int64]]]:
    """Join lists rank by rank, each document once; with the place of every list's hits."""
    if len(lists) == 1:
        return lists[0], [np.arange(len(lists[0]))]
    place: dict[str, int] = {}
    for rank in range(max(map(len, lists), default=0)):
        for names in lists:
            if rank < len(names):
                place.setdefault(names[rank], len(place))
    return list(place), [
        np.fromiter((place[name] for name in names), np.int64, len(names)) for names in lists
    ]


def _with_given(
    query: str,
    known: Sequence[str],
    scores: dict[str, float],
    positive_scores: PositiveScores | None,
) -> dict[str, float]:
    """Return the known positives' scores: the list's own, else those supplied."""
    for document in known:
        if document in scores or positive_scores is None:
            continue
        score = (
            positive_scores(query, document)
            if callable(positive_scores)
            else positive_scores.get(query, {}).get(document)
        )
        if score is not None:
            scores[document] = score
    for document, score in scores.items():
        if not math.isfinite(score):
            raise DataError(
                f"query {query!r}: its positive {document!r} has score {score}, expected a finite "
                "number; check the encoder or run that scored it"
            )
    return scores


def _limit(
    candidates: Candidates, listed: Listed, is_known: NDArray[np.bool_], mining: Mining
) -> None:
    """Note a list's ranks and ratios, and what its limits drop."""
    places, scores, positive = listed.places, listed.scores, listed.positive
    ranks = (np.cumsum(~is_known) - 1).astype(np.int32)
    candidates.ranks[places] = np.minimum(candidates.ranks[places], ranks)
    if not math.isnan(positive) and positive != 0:
        ratios = 1 + (scores - positive) / abs(positive)
        candidates.ratios[places] = np.fmax(candidates.ratios[places], ratios)
    end = math.inf if mining.range_max is None else mining.range_max
    fails = [("rank", (ranks < mining.range_min) | (ranks >= end))]
    if not math.isnan(positive):
        for reason, constant, share in mining.margins:
            # Not a share of the positive itself: of a negative score that would lie above it.
            below = positive - (constant + share * abs(positive))
            fails.append((reason, scores >= below))
    if mining.max_score is not None:
        fails.append(("max_score", scores >= mining.max_score))
    if mining.min_score is not None:
        fails.append(("min_score", scores < mining.min_score))
    for reason, dropped in fails:
        free = dropped & (candidates.reasons[places] == FITS)
        candidates.reasons[places[free]] = CODES[reason]


def to_judge(
    batch: Sequence[Candidates], mining: Mining, keys: TextKeys | None
) -> list[tuple[Candidates, str, int | None]]:
    """Return the documents that a judge will score, with their places; None is a positive's.

    They are of each query the known positives and the first fitting candidates; the other ones
    below are noted as unjudged.
    """
    asked: list[tuple[Candidates, str, int | None]] = []
    for candidates in batch:
        pool = distinct(candidates, candidates.fitting, mining.judge_depth, keys)
        below = set(candidates.fitting).difference(pool)
        candidates.reasons[list(below)] = CODES["unjudged"]
        if pool:
            asked += [(candidates, document, None) for document in candidates.known]
            asked += [(candidates, candidates.documents[place], place) for place in pool]
    return asked


def apply_judge(
    batch: Sequence[Candidates],
    judge: Judge,
    mining: Mining,
    keys: TextKeys | None,
    queries: Mapping[str, str],
    texts: TextSource | None,
) -> None:
    """Have the first fitting candidates and the positives judged, and drop by what comes back."""
    asked = to_judge(batch, mining, keys)
    texts_read: Mapping[str, str] = {}
    if judge.needs_texts and texts is not None:
        texts_read = texts_of(texts, list(dict.fromkeys(document for _, document, _ in asked)))
        asked = [item for item in asked if item[1] in texts_read and item[0].query in queries]
    pairs = [
        JudgedPair(
            candidates.query,
            queries.get(candidates.query, ""),
            document,
            texts_read.get(document, ""),
        )
        for candidates, document, _ in asked
    ]
    scores = judged(judge, pairs).tolist()
    for (candidates, document, place), score in zip(asked, scores, strict=True):
        if place is None and not math.isnan(score):
            candidates.judged_positives[document] = score
        elif place is not None:
            candidates.judged[place] = score
    if mining.judge_gamma is not None:
        _check_probabilities(judge, scores)
    for candidates in batch:
        if mining.judge_gamma is not None:
            unknown = (candidates.reasons == FITS) & np.isnan(candidates.judged)
            candidates.reasons[unknown] = CODES["unjudged"]
        if mining.judge_margin is not None and candidates.judged_positives:
            positive = mining.reference(candidates.judged_positives.values())
            limit = positive - mining.judge_margin
            fits = candidates.reasons == FITS
            candidates.reasons[fits & np.isnan(candidates.judged)] = CODES["unjudged"]
            candidates.reasons[fits & (candidates.judged >= limit)] = CODES["judge"]


def _check_probabilities(judge: Judge, scores: Sequence[float]) -> None:
    outside = [score for score in scores if score < 0 or score > 1]
    if outside:
        raise DataError(
            f"negatives.judge_gamma: the judge {judge.name} gives {outside[0]:.4g}, expected "
            "probabilities, 0 to 1, as those of an rrra adapter; use judge_margin with this judge"
        )


def distinct(
    candidates: Candidates, order: Sequence[int], most: int, keys: TextKeys | None
) -> list[int]:
    """Return the first ``most`` places of ``order`` with new texts, not those of a positive.

    Equal texts on the way are noted as dropped.
    """
    taking = _Taking(candidates, keys)
    taking.take(order, most)
    return taking.chosen


def shared_out(
    candidates: Candidates, order: Sequence[int], mining: Mining, keys: TextKeys | None, seed: int
) -> list[int]:
    """Return ``mining.per_query`` places of ``order``, each list's ``mining.shares`` of them.

    A candidate of several lists counts for the first. What a list lacks is taken in ``order``.
    """
    offset = random.Random(f"{seed}:shares:{candidates.query}").random()
    taking = _Taking(candidates, keys)
    ends = np.cumsum(mining.shares or ()) * mining.per_query + offset
    ends[-1] = mining.per_query + offset  # sums of shares are not exact
    for end, listed in zip(np.floor(ends).astype(int).tolist(), candidates.lists, strict=True):
        own = set(listed.places.tolist())
        taking.take([place for place in order if place in own], end)
    taking.take(order, mining.per_query)
    return taking.chosen


class _Taking:
    """Takes places whose texts are new, and not those of a positive."""

    def __init__(self, candidates: Candidates, keys: TextKeys | None) -> None:
        self.candidates = candidates
        self.keys = keys
        self.chosen: list[int] = []
        self._done: set[int] = set()
        self._seen: set[int] = set()
        known = candidates.known if keys is not None else ()
        self._positives = {keys[document] for document in known} if keys is not None else set()

    def take(self, order: Sequence[int], most: int) -> None:
        """Take places in this order until there are ``most``; note equal texts as dropped."""
        for place in order:
            if len(self.chosen) >= most:
                return
            if place in self._done:
                continue
            self._done.add(place)
            reason = self._dropped(place)
            if reason is None:
                self.chosen.append(place)
            else:
                self.candidates.reasons[place] = CODES[reason]

    def _dropped(self, place: int) -> str | None:
        if self.keys is None:
            return None
        key = self.keys[self.candidates.documents[place]]
        if key == EMPTY:
            return "empty_text"
        if key is None:
            return None
        if key in self._positives:
            return "positive_text"
        if key in self._seen:
            return "duplicate_text"
        self._seen.add(key)
        return None


def preferred(candidates: Candidates, mining: Mining, seed: int) -> list[int]:
    """Return the places that fit in the order in which they are to be taken."""
    places = candidates.fitting
    if mining.judge_gamma is not None:
        weights = resampled(candidates, mining.judge_gamma)
        places.sort(key=lambda place: -weights[place])
    elif mining.sampling == "random":
        random.Random(f"{seed}:{candidates.query}").shuffle(places)
    elif mining.sampling == "cyclic":
        if candidates.judged_positives:
            places.sort(key=lambda place: -candidates.judged[place])
        places = [place for start in range(mining.step) for place in places[start :: mining.step]]
    return places


def resampled(candidates: Candidates, gamma: float) -> NDArray[np.float64]:
    """Return ``s (1 - J)^gamma`` of each candidate, s its score in the only list (RRRA).

    Of a negative s, ``s (1 - J)^-gamma``, so that it falls as J rises.
    """
    scores: NDArray[np.float64] = candidates.lists[0].scores
    kept = np.maximum(1 - candidates.judged, 1e-12) ** gamma
    return np.where(scores >= 0, scores * kept, scores / kept)
