"""Fusion as a stage: several stages answer, their runs become one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from encoders.errors import ConfigError, suggest
from retrieval.fusion import NORMALISATIONS, reciprocal_rank_fusion, weighted_fusion
from retrieval.ranking import Run
from retrieval.stage import DEPTH, Queries, Stage, Texts

if TYPE_CHECKING:
    from retrieval.where import Where

METHODS = ("rrf", "weighted")


class Fuse(Stage):
    """Fuse the runs of ``stages``: by reciprocal rank, or by weighted normalised scores.

    ``method="rrf"``: sum over the runs of ``weight / (rank_constant + rank)`` (Cormack et al.,
    2009). ``method="weighted"``: sum of ``weight x normalised score`` with ``normalise`` in
    ``min-max``, ``z-score``, ``none``. Weights are 1 unless given, one a stage. Raises
    ``ConfigError`` for any other value.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        method: Literal["rrf", "weighted"] = "rrf",
        rank_constant: float = 60,
        weights: Sequence[float] | None = None,
        normalise: Literal["min-max", "z-score", "none"] = "min-max",
    ) -> None:
        if method not in METHODS:
            raise ConfigError(
                f"fusion {method!r}; known: {', '.join(METHODS)}{suggest(method, METHODS)}"
            )
        if not isinstance(normalise, str) or normalise not in NORMALISATIONS:
            raise ConfigError(
                f"fusion: normalise={normalise!r}; known: {', '.join(NORMALISATIONS)}"
                f"{suggest(str(normalise), NORMALISATIONS)}"
            )
        if not _is_number(rank_constant) or rank_constant <= 0:
            raise ConfigError(f"fusion: rank_constant={rank_constant!r}; expected a number above 0")
        if weights is not None and not (
            isinstance(weights, (list, tuple))
            and all(_is_number(weight) and weight >= 0 for weight in weights)
            and any(weights)
        ):
            raise ConfigError(
                f"fusion: weights={weights!r}; expected a list of numbers, 0 or more, not all 0"
            )
        if weights is not None and len(weights) != len(stages):
            raise ConfigError(f"fusion: {len(weights)} weights for {len(stages)} stages")
        self.stages = tuple(stages)
        self.method = method
        self.rank_constant = rank_constant
        self.weights = None if weights is None else tuple(float(w) for w in weights)
        self.normalise = normalise
        joint = " | " if self._plain else ", "
        inner = joint.join(stage.name for stage in stages)
        self.name = f"({inner})" if self._plain else f"{method}({inner})"

    @classmethod
    def joining(cls, left: Stage, right: Stage) -> Fuse:
        """Return ``left | right``; ``a | b | c`` is one fusion of three lists, not two of two."""
        parts: list[Stage] = []
        for stage in (left, right):
            parts += stage.stages if isinstance(stage, Fuse) and stage._plain else [stage]
        return cls(parts)

    @property
    def _plain(self) -> bool:
        return self.method == "rrf" and self.weights is None and self.rank_constant == 60

    @property
    def documents(self) -> Texts | None:
        """The first store among the stages."""
        return next((s.documents for s in self.stages if s.documents is not None), None)

    def attached(self, documents: Texts) -> Stage:
        """Return the fusion over the stages with a store."""
        return self._over([stage.attached(documents) for stage in self.stages])

    def filtered(self, where: Where) -> Stage:
        """Return the fusion over the stages filtered."""
        return self._over([stage.filtered(where) for stage in self.stages])

    def _over(self, stages: Sequence[Stage]) -> Fuse:
        return Fuse(
            stages,
            method=self.method,
            rank_constant=self.rank_constant,
            weights=self.weights,
            normalise=self.normalise,
        )

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Run every stage to its full depth and fuse their runs."""
        depth = max(DEPTH, k or 0)
        runs = [stage.run(queries, given, depth) for stage in self.stages]
        if self.method == "rrf":
            return reciprocal_rank_fusion(runs, k=self.rank_constant, weights=self.weights)
        weights = self.weights or (1.0,) * len(runs)
        return weighted_fusion(runs, weights, normalise=self.normalise)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
