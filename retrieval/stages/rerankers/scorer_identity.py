"""What tells scorers of pairs apart, so that scores of one are never taken for another's."""

from __future__ import annotations

from typing import Any

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.files import fingerprint_of
from sluice.retrieval.pipelines.stage import Stage

# Keys hold the module in which a scorer lay when the first were written, so that scores cached then
# are found. Do not rename.
_FORMER_MODULES = {
    "CrossEncoder": "encoders.cross_encoder",
    "MaxSim": "retrieval.token_similarity",
    "PassageScorer": "retrieval.passage_scorer",
    "Pointwise": "retrieval.pointwise",
    "Summarised": "retrieval.summary_scorer",
}


class ScorerIdentity:
    """Called, it returns a hash of everything that decides a scorer's scores.

    That is its class, its ``fingerprint``, its arithmetic type, its back end and the ``name`` it
    was given. Hashing a model takes a tenth of a second, so it is done again only when torch counts
    a change of its weights. ``ConfigError`` for a scorer that has neither fingerprint nor name.
    """

    def __init__(self, scorer: Any, name: str = "") -> None:
        self._scorer = scorer
        self._name = name
        self._known: tuple[Any, str] | None = None

    def __call__(self) -> str:
        """Return the hash of the scorer as it is now."""
        state = self._state()
        if state is None or self._known is None or self._known[0] != state:
            self._known = state, self._made()
        return self._known[1]

    def _state(self) -> Any:
        """Return what changes when a model does; None where that is not known."""
        module = getattr(self._scorer, "module", None)
        if module is None or not hasattr(module, "parameters"):
            return None
        from sluice.encoders.model_files.identity import versions

        kept = (getattr(self._scorer, name, None) for name in ("dtype", "max_length", "backend"))
        return (*kept, *versions(module.parameters()))

    def _made(self) -> str:
        scorer, kind = self._scorer, type(self._scorer)
        found = getattr(scorer, "fingerprint", None)
        if found is None and not self._name:
            raise ConfigError(
                f"{kind.__name__} has no fingerprint, so its scores cannot be told from another's; "
                "give it name='...', and another name whenever it scores differently"
            )
        backend = getattr(scorer, "backend", None)
        engine = "" if backend is None else str(getattr(backend, "name", type(backend).__name__))
        ours = kind.__module__.startswith("sluice.")
        module = _FORMER_MODULES.get(kind.__name__, "") if ours else ""
        kinds = f"{module or kind.__module__}:{kind.__qualname__}"
        dtype = str(getattr(scorer, "dtype", ""))
        return fingerprint_of(kinds, str(found or ""), dtype, engine, self._name)


def check_pair_scorer(scorer: Any, caller: str) -> None:
    """Raise ``ConfigError`` unless ``scorer`` scores pairs of texts, one by one."""
    if isinstance(scorer, Stage):
        raise ConfigError(
            f"{caller}: {scorer.name} is a stage, expected a scorer of pairs such as a "
            "cross-encoder of rerankers"
        )
    if callable(getattr(scorer, "score_lists", None)):
        raise ConfigError(
            f"{caller}: {type(scorer).__name__} scores whole lists, expected a scorer of pairs "
            "such as a cross-encoder"
        )
    if not callable(getattr(scorer, "score", None)):
        raise ConfigError(
            f"{caller}: {type(scorer).__name__} has no score(pairs) method; expected a "
            "cross-encoder or an object like it"
        )
