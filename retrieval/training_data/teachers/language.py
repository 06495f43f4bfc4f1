"""Language models as teachers and judges: their answer about each pair, paid for once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.build import build, check
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.pipelines.remembered_scores import remembered
from sluice.retrieval.pipelines.table import LANGUAGE_MODELS, REMOTE, SCORERS
from sluice.retrieval.stages.generative.pointwise import Pointwise
from sluice.retrieval.stages.generative.word_logit import WordLogit
from sluice.retrieval.stages.rerankers.score_cache import ScoreCache
from sluice.training.negatives.judge import JudgedPair

if TYPE_CHECKING:
    from sluice.retrieval.config.components import Allow

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

        found, _ = remembered(
            texts,
            lambda asked: cache.get(identity, asked),
            lambda places: self._scorer.known([texts[p] for p in places]).astype(np.float32),
            keep,
            block=BLOCK,
        )
        return found.astype(np.float64)


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


def is_language_model(spec: Any) -> bool:
    """Return whether a component is a language model that scores pairs."""
    return isinstance(spec, Mapping) and spec.get("type") in LANGUAGE_MODELS


def local_model_of(spec: Mapping[str, Any]) -> list[str]:
    """Return the folder or hub id of a component's model, nothing for one behind an endpoint."""
    return [] if spec.get("type") in REMOTE else [str(spec.get("model"))]


def check_language_model(spec: Mapping[str, Any], where: str, allow: Allow = None) -> None:
    """Check ``{type: generative, ...}`` or ``{type: http, ...}`` with ``cache`` before any work."""
    check({key: spec[key] for key in spec if key != CACHE}, TYPES, where=where, allow=allow)
    style = spec.get("style", "yes_no")
    if style not in STYLES:
        raise ConfigError(
            f"{where}.style: {style} orders lists, and here each pair needs a score of its own; "
            f"expected one of {', '.join(STYLES)}"
        )
    cache = spec.get(CACHE)
    if CACHE in spec and (not isinstance(cache, str) or not cache):
        raise ConfigError(
            f"{where}.cache: {cache!r:.60}; expected a file, as 'runs/answers.sqlite'"
        )


def make_language_teacher(
    spec: Mapping[str, Any], where: str, model: Callable[[str], str] = str
) -> LanguageTeacher:
    """Open what ``check_language_model`` checks; ``model`` maps names of models to folders."""
    check_language_model(spec, where)
    arguments = {key: spec[key] for key in spec if key != CACHE}
    for name in local_model_of(spec):
        arguments["model"] = model(name)
    scorer: PairScorer = build(arguments, TYPES, where=where)
    return LanguageTeacher(scorer, str(spec["model"]), spec.get(CACHE))
