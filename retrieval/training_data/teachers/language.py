"""Language models as teachers and judges: their answer about each pair, paid for once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.pipelines.scorer import remembered
from sluice.retrieval.pipelines.table import LANGUAGE_MODELS, SCORERS
from sluice.retrieval.stages.generative.pointwise import Pointwise
from sluice.retrieval.stages.generative.rerankers import WordLogit
from sluice.retrieval.stages.rerankers.score_cache import ScoreCache
from sluice.training.negatives.judge import JudgedPair

Scores = NDArray[np.float64]
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
    import yaml

    from sluice.encoders.foundation.input.plain_yaml import load_yaml

    try:
        spec: Any = load_yaml(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{where}: {text!r:.200} is not YAML ({error})") from None
    if not isinstance(spec, Mapping):
        raise ConfigError(
            f"{where}: {text!r:.80}; expected a folder, a hub id, or YAML such as '{{type: http, "
            "url: ..., model: ...}'"
        )
    return spec
