"""Teachers: models, runs and files that score (query, document) pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import encodes, hooks_of
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.token_vectors import TokenVectors, max_sim
from sluice.retrieval.pipelines.scorer import ScorerHooks
from sluice.retrieval.runs.run import Run
from sluice.training.negatives.judge import JudgedPair

Scores = NDArray[np.float64]  # [pairs], NaN where there is none

Texts = Callable[[], Iterable[str]]  # the texts of a corpus, streamed anew


class ModelTeacher:
    """A cross-encoder, or a bi-encoder by the similarity of its two vectors."""

    needs_texts = True

    def __init__(self, model: Any, name: str) -> None:
        self.name = name
        self._model = model
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
        right = self._model.encode_documents(documents)
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
