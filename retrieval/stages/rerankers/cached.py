"""Scores pairs from a cache first, and asks the scorer only for those that are missing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.pipelines.remembered_scores import remembered
from sluice.retrieval.pipelines.scorer import Scorer
from sluice.retrieval.pipelines.tracing import tally
from sluice.retrieval.stages.rerankers.score_cache import DEFAULT_BYTES, ScoreCache
from sluice.retrieval.stages.rerankers.scorer_identity import ScorerAround

BLOCK = 4_096  # pairs scored before they are written: what a kill can cost


class Cached(ScorerAround):
    """``scorer``, but a pair whose score is in ``cache`` is not scored again.

    Of pairs given twice one is scored. Scores are kept under the scorer's fingerprint, so another
    model, or the same one trained further, finds none of them; its arithmetic type counts too.
    ``name`` identifies a scorer without a fingerprint; change it when the scores change.
    ``hits`` and ``misses`` count pairs found and pairs scored so far.

    A scorer whose scores depend on the other pairs of the list must not be cached.
    """

    def __init__(self, scorer: Scorer, cache: ScoreCache, *, name: str = "") -> None:
        super().__init__(scorer, "cached", name=name)
        self.cache = cache
        self.hits = 0
        self.misses = 0

    @property
    def fingerprint(self) -> str:
        """That of the scorer: the cache changes no score."""
        return fingerprint_of("cached", self._identity())

    @property
    def identity(self) -> str:
        """What the scores are kept under in the cache."""
        return self._identity()

    @property
    def tokenizer(self) -> Any:
        """The scorer's tokenizer, None where it has none: what passages are measured by."""
        return self._hooks.tokenizer

    def score(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Return one score per pair, float32 ``[n]``; ``DataError`` for one that is not finite.

        What is missing is scored and written a few thousand pairs at a time.
        """
        identity = self._identity()
        scores, misses = remembered(
            pairs,
            partial(self.cache.get, identity),
            lambda places: self._score([pairs[place] for place in places]),
            partial(self.cache.put, identity),
            block=BLOCK,
        )
        self.hits += len(pairs) - misses
        self.misses += misses
        tally({"cache hits": len(pairs) - misses, "cache misses": misses})
        return scores

    def _score(self, pairs: list[tuple[str, str]]) -> NDArray[np.float32]:
        scores = np.asarray(self.scorer.score(pairs), np.float32)
        if scores.shape != (len(pairs),) or not np.isfinite(scores).all():
            raise DataError(
                f"{type(self.scorer).__name__}: returned scores of shape {scores.shape} for "
                f"{len(pairs)} pairs, or one that is not finite; none of them is cached"
            )
        return scores


def cached(scorer: Any, /, *, file: str, max_bytes: int = DEFAULT_BYTES, name: str = "") -> Cached:
    """Return ``scorer`` with its scores kept in ``file``; see ``Cached`` and ``ScoreCache``."""
    if not file:
        raise ConfigError("cached: file is empty; expected a path such as 'runs/scores.sqlite'")
    return Cached(scorer, ScoreCache(Path(file), max_bytes=max_bytes), name=name)
