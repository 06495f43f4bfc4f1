"""Identifies scorers of pairs, so that one scorer's scores are never taken for another's."""

from __future__ import annotations

from typing import Any

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.pipelines.scorer import Scorer, ScorerHooks
from sluice.retrieval.pipelines.stage import Stage

# Keys hold the module in which a scorer lay when the first were written, so that scores cached then
# are found. Do not rename.
_FORMER_MODULES = {
    "ConvKNRM": "sluice.encoders.own.matching.conv_knrm",
    "CrossEncoder": "encoders.cross_encoder",
    "DRMM": "sluice.encoders.own.matching.drmm",
    "Duet": "sluice.encoders.own.matching.duet",
    "FunctionScorer": "sluice.encoders.rerankers.given",
    "HttpReranker": "sluice.encoders.rerankers.http",
    "KNRM": "sluice.encoders.own.matching.knrm",
    "MatchPyramid": "sluice.encoders.own.matching.match_pyramid",
    "MaxSim": "retrieval.token_similarity",
    "PACRR": "sluice.encoders.own.matching.pacrr",
    "PassageScorer": "retrieval.passage_scorer",
    "Pointwise": "retrieval.pointwise",
    "PredictScorer": "sluice.encoders.rerankers.given",
    "Summarised": "retrieval.summary_scorer",
    "VectorDot": "sluice.retrieval.stages.rerankers.dot",
}


class ScorerIdentity:
    """Called, it returns a hash of everything that decides a scorer's scores.

    That is its class, its ``fingerprint``, its arithmetic type, its back end and the ``name`` it
    was given. Hashing a model takes a tenth of a second, so it is hashed again only when torch
    counts a change of its weights. ``ConfigError`` for a scorer without fingerprint and name.
    """

    def __init__(self, scorer: Any, name: str = "") -> None:
        self._hooks = ScorerHooks(scorer)
        self._name = name
        self._known: tuple[Any, str] | None = None

    def __call__(self) -> str:
        """Return the hash of the scorer as it is now."""
        state = self._state()
        if state is None or self._known is None or self._known[0] != state:
            self._known = state, self._hash()
        return self._known[1]

    def _state(self) -> Any:
        """Return what changes when a model does; None where that is not known."""
        weights = self._hooks.weights
        if weights is None:
            return None
        from sluice.encoders.model_files.identity import versions

        parameters, *settings = weights
        return (*settings, *versions(parameters))

    def _hash(self) -> str:
        hooks, kind = self._hooks, type(self._hooks.scorer)
        fingerprint = hooks.fingerprint
        if fingerprint is None and not self._name:
            raise ConfigError(
                f"{kind.__name__} has no fingerprint to tell its scores from those of others; "
                "give it name='...', and another name whenever it scores differently"
            )
        ours = kind.__module__.startswith("sluice.")
        module = _FORMER_MODULES.get(kind.__name__, "") if ours else ""
        kinds = f"{module or kind.__module__}:{kind.__qualname__}"
        return fingerprint_of(kinds, fingerprint or "", str(hooks.dtype), hooks.engine, self._name)


class ScorerAround:
    """A scorer of pairs that asks another one; ``caller`` is its name in error messages."""

    def __init__(self, scorer: Scorer, caller: str, *, name: str = "") -> None:
        check_pair_scorer(scorer, caller)
        self.scorer = scorer
        self._hooks = ScorerHooks(scorer)
        self._identity = ScorerIdentity(scorer, name)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The retrievers that the scorer looks into."""
        return self._hooks.stages


def check_pair_scorer(scorer: Any, caller: str) -> None:
    """Raise ``ConfigError`` unless ``scorer`` scores pairs of texts, one by one."""
    if isinstance(scorer, Stage):
        raise ConfigError(
            f"{caller}: {scorer.name} is a stage, expected a scorer of pairs such as a "
            "cross-encoder of rerankers"
        )
    hooks = ScorerHooks(scorer)
    if hooks.scores_lists:
        raise ConfigError(
            f"{caller}: {type(scorer).__name__} scores lists; expected a scorer of pairs "
            "such as a cross-encoder"
        )
    if not hooks.scores_pairs:
        raise ConfigError(
            f"{caller}: {type(scorer).__name__} has no score(pairs) method; expected a "
            "cross-encoder or an object like it"
        )
