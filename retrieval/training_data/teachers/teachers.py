"""Teachers that score (query, document) pairs: models, language models, runs, and ensembles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import encodes, hooks_of
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.tokens import TokenVectors, max_sim
from sluice.retrieval.config.component_types import ENSEMBLE
from sluice.retrieval.pipelines.scorer import ScorerHooks, remembered
from sluice.retrieval.pipelines.table import LANGUAGE_MODELS, SCORERS
from sluice.retrieval.runs.run import Run
from sluice.retrieval.stages.generative.pointwise import Pointwise
from sluice.retrieval.stages.generative.rerankers import WordLogit
from sluice.retrieval.stages.rerankers.score_cache import ScoreCache
from sluice.training.negatives.false_negatives import Judge, JudgedPair, judged

Scores = NDArray[np.float64]

SETTINGS: Final = ("teachers", "weights", "normalise", "scale")


class Teacher(Judge, Protocol):
    """A judge whose scores depend on the pairs alone; its fingerprint identifies it."""

    @property
    def fingerprint(self) -> str:
        """A hash that changes whenever a score would."""
        ...


def _min_max(scores: Scores) -> Scores:
    low, high = scores.min(), scores.max()
    return (scores - low) / (high - low) if high > low else np.zeros_like(scores)


def _z_score(scores: Scores) -> Scores:
    flat = scores.min() == scores.max()
    return np.zeros_like(scores) if flat else (scores - scores.mean()) / scores.std()


def _as_is(scores: Scores) -> Scores:
    return scores


NORMALISERS: Final[Mapping[str, Callable[[Scores], Scores]]] = {
    "min-max": _min_max,
    "z-score": _z_score,
    "none": _as_is,
}


class Mixture:
    """``scale * sum_k w_k n(s_k) / sum_k w_k``: how several teachers' scores become one.

    n is over the candidates of one query: ``min-max`` (s - l) / (h - l), ``z-score``
    (s - mean) / deviation, or ``none``; scores that are all the same become 0 by the former two.
    """

    def __init__(
        self,
        count: int,
        weights: Sequence[float] | None = None,
        normalise: str = "none",
        scale: float = 1.0,
        where: str = "teacher",
    ) -> None:
        self.weights = [1.0] * count if weights is None else list(map(float, weights))
        if not count or len(self.weights) != count:
            raise ConfigError(
                f"{where}.weights: {len(self.weights)} for {count} teachers; expected one each"
            )
        if not all(0 < weight < np.inf for weight in self.weights):
            raise ConfigError(f"{where}.weights: {self.weights}; expected finite numbers above 0")
        if normalise not in NORMALISERS:
            raise ConfigError(
                f"{where}.normalise: {normalise!r}; expected one of {', '.join(NORMALISERS)}"
                f"{suggest(str(normalise), NORMALISERS)}"
            )
        if not 0 < scale < np.inf:
            raise ConfigError(f"{where}.scale: {scale!r}; expected a finite number above 0")
        self.normalise = normalise
        self.scale = float(scale)

    def of_query(self, members: Sequence[Scores]) -> Scores:
        """Return ``[n]``: one query's scores from those of every member ``[n]``, without NaN."""
        normal = NORMALISERS[self.normalise]
        parts = zip(self.weights, members, strict=True)
        mixed: Scores = sum(
            (weight * normal(scores) for weight, scores in parts),
            start=np.zeros(len(members[0])),
        )
        return mixed * (self.scale / sum(self.weights))

    @property
    def facts(self) -> tuple[list[float], str, float]:
        """What decides the mixture, for fingerprints."""
        return self.weights, self.normalise, self.scale


class Ensemble:
    """Several teachers of any kind as one, see ``Mixture``.

    A pair that one of them has no score for gets none: a mean over the others would be on another
    scale. Unless ``normalise`` is ``none`` all pairs of a query must be scored together.
    """

    def __init__(
        self,
        teachers: Sequence[Teacher],
        weights: Sequence[float] | None = None,
        *,
        normalise: str = "none",
        scale: float = 1.0,
    ) -> None:
        self.mixture = Mixture(len(teachers), weights, normalise, scale)
        self.teachers = list(teachers)
        self.name = " + ".join(teacher.name for teacher in teachers)
        self.needs_texts = any(teacher.needs_texts for teacher in teachers)

    @property
    def fingerprint(self) -> str:
        """A hash of the members' fingerprints and of how they are mixed."""
        members = [teacher.fingerprint for teacher in self.teachers]
        return fingerprint_of(ENSEMBLE, members, *self.mixture.facts)

    def scores(self, pairs: Sequence[JudgedPair]) -> Scores:
        """Return the mixed scores, NaN where a member has none."""
        members = np.stack([judged(teacher, pairs) for teacher in self.teachers])
        known = np.isfinite(members).all(axis=0)
        places: dict[str, list[int]] = {}
        for place in np.flatnonzero(known).tolist():
            places.setdefault(pairs[place].query_id, []).append(place)
        mixed = np.full(len(pairs), np.nan)
        for own in places.values():
            mixed[own] = self.mixture.of_query(list(members[:, own]))
        return mixed


PairScorer: TypeAlias = Pointwise | WordLogit

TYPES: Final = {name: SCORERS[name] for name in LANGUAGE_MODELS}
STYLES: Final = ("yes_no", "graded", "logit")  # that score a pair alone
BLOCK = 64  # pairs whose answers are written down together: what an interruption can cost
CACHE = "cache"  # the key beside those of the reranker: its file of scores


class LanguageTeacher:
    """A language model's answer about each pair alone: P(yes), the expected grade, or a logit.

    A pair whose answer is of no use has no score. With ``cache``, a file, no pair is sent
    twice, and an interruption keeps what was answered; a pair without an answer is sent again.
    """

    needs_texts = True

    def __init__(self, scorer: PairScorer, name: str, cache: str | None = None) -> None:
        self.name = name
        self._scorer = scorer
        self._cache = None if cache is None else ScoreCache(cache)

    @property
    def fingerprint(self) -> str:
        """A hash of the model, the prompt and its answers."""
        return self._scorer.fingerprint

    def scores(self, pairs: Sequence[JudgedPair]) -> Scores:
        """Return the scores, NaN for a pair without a usable answer."""
        texts = [(pair.query, pair.document) for pair in pairs]
        if self._cache is None:
            return self._scorer.known(texts)
        cache, identity = self._cache, self.fingerprint

        def keep(some: Sequence[tuple[str, str]], scores: Any) -> None:
            known = np.flatnonzero(~np.isnan(scores))
            cache.put(identity, [some[place] for place in known.tolist()], scores[known])

        scores, _ = remembered(
            texts,
            lambda some: cache.get(identity, some),
            lambda places: self._scorer.known([texts[p] for p in places]).astype(np.float32),
            keep,
            block=BLOCK,
        )
        return scores.astype(np.float64)


def parsed_component(text: str, where: str) -> Mapping[str, Any]:
    """Return the component of a YAML text such as ``{type: http, url: ..., model: ...}``."""
    from sluice.encoders.foundation.bounded_input import yaml_value

    spec = yaml_value(text, where)
    if not isinstance(spec, Mapping):
        raise ConfigError(
            f"{where}: {text!r:.80}; expected a folder, a hub id, or YAML such as '{{type: http, "
            "url: ..., model: ...}'"
        )
    return spec


Texts = Callable[[], Iterable[str]]  # the texts of a corpus, streamed anew


KEPT = 2**28  # bytes of documents' vectors


class ModelTeacher:
    """A cross-encoder, or a bi-encoder by the similarity of its two vectors."""

    needs_texts = True

    def __init__(self, model: Any, name: str) -> None:
        self.name = name
        self._model = model
        self._kept: dict[str, NDArray[Any]] = {}  # vectors of documents met before, by text
        if not ScorerHooks(model).scores_pairs and not encodes(model):
            raise ConfigError(
                f"teacher {name}: {type(model).__name__} can neither score pairs nor encode texts; "
                "expected a cross-encoder or an encoder"
            )
        similarity = hooks_of(model).similarity
        if similarity in ("q_net", "attention"):
            raise ConfigError(
                f"teacher {name}: a {type(model).__name__} has a score of its own ({similarity}), "
                "and a teacher compares two vectors; search with it, and name the file of that run"
            )

    @property
    def fingerprint(self) -> str:
        """The model's fingerprint."""
        return str(self._model.fingerprint)

    @property
    def model(self) -> Any:
        """The model, of either kind."""
        return self._model

    @property
    def encoder(self) -> Any:
        """The model where it encodes queries and documents apart; None: it scores pairs only."""
        return None if ScorerHooks(self._model).scores_pairs else self._model

    def scores(self, pairs: Sequence[JudgedPair]) -> Scores:
        """Return the model's scores; ``DataError`` for one that is not finite."""
        if ScorerHooks(self._model).scores_pairs:
            raw = self._model.score([(query, document) for _, query, _, document in pairs])
        else:
            raw = self._similarities(pairs)
        scores = np.asarray(raw, np.float64)
        bad = np.count_nonzero(~np.isfinite(scores))
        if bad:
            raise DataError(
                f"teacher {self.name}: not finite: {bad:,} of {len(pairs):,} scores; the model is "
                "damaged, or its dtype too small"
            )
        return scores

    def _similarities(self, pairs: Sequence[JudgedPair]) -> NDArray[Any]:
        queries = list(dict.fromkeys(pair[1] for pair in pairs))
        documents = list(dict.fromkeys(pair[3] for pair in pairs))
        left = self._model.encode_queries(queries)
        right = self._documents(documents)
        row = {text: place for place, text in enumerate(queries)}
        column = {text: place for place, text in enumerate(documents)}
        if isinstance(left, TokenVectors):
            return _max_sims(left, right, [(row[pair[1]], column[pair[3]]) for pair in pairs])
        one = left[np.array([row[pair[1]] for pair in pairs])]
        other = right[np.array([column[pair[3]] for pair in pairs])]
        products = np.asarray((one * other).sum(axis=1), np.float64).ravel()
        if hooks_of(self._model).similarity == "cosine":
            products /= (_lengths(one) * _lengths(other)).clip(1e-30)
        return products

    def _documents(self, texts: list[str]) -> Any:
        """Return the documents' vectors; dense ones are kept, since shards share documents."""
        new = [text for text in texts if text not in self._kept]
        if new:
            encoded = self._model.encode_documents(new)
            if not isinstance(encoded, np.ndarray):
                return encoded  # of all: none of these is kept
            self._kept.update(zip(new, encoded, strict=True))
        vectors = np.stack([self._kept[text] for text in texts])
        for text in list(self._kept)[: max(len(self._kept) - KEPT // vectors[0].nbytes, 0)]:
            del self._kept[text]
        return vectors


def _max_sims(
    queries: TokenVectors, documents: TokenVectors, cells: Sequence[tuple[int, int]]
) -> Scores:
    """Return the MaxSim of some pairs; -1 a query token for a document without tokens."""
    places: dict[int, list[int]] = {}
    for place, (query, _) in enumerate(cells):
        places.setdefault(query, []).append(place)
    scores = np.empty(len(cells))
    for query, own in places.items():
        texts = documents.rows([cells[place][1] for place in own])
        least = -float(queries.lengths[query])
        scores[own] = np.maximum(max_sim(queries.rows([query]), texts)[0], least)
    return scores


def _lengths(vectors: Any) -> Scores:
    return np.sqrt(np.asarray((vectors * vectors).sum(axis=1), np.float64).ravel())


class RunTeacher:
    """A run's own scores; pairs that the run lacks have none."""

    needs_texts = False

    def __init__(self, run: Run, name: str, fingerprint: str) -> None:
        self.name = name
        self.fingerprint = fingerprint
        self.run = run

    def scores(self, pairs: Sequence[JudgedPair]) -> Scores:
        """Return the scores of pairs in the run, NaN for the others."""
        lists: dict[str, dict[str, float]] = {}
        for query, _, _, _ in pairs:
            if query not in lists:
                lists[query] = dict(self.run[query]) if query in self.run else {}
        return np.array([lists[pair[0]].get(pair[2], np.nan) for pair in pairs], np.float64)
