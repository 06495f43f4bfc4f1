"""Fusion as a stage: several stages answer, their runs become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from encoders.errors import ConfigError
from retrieval.filtered import Filtered
from retrieval.fusion import Fusion
from retrieval.fusion_fit import FusionFit
from retrieval.ranking import Run
from retrieval.stage import DEPTH, Cut, Queries, Stage


class Fuse(Stage):
    """Fuse the runs of ``stages``: by reciprocal rank, normalised scores, or another method.

    ``Fusion`` has the methods and what the options mean; it may be given whole, as ``method``.
    Weights are 1 unless given, one a stage. Raises ``ConfigError`` for any other value.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        method: str | Fusion = "rrf",
        rank_constant: float = 60,
        weights: Sequence[float] | None = None,
        normalise: str = "min-max",
        minimum: float | Sequence[float | None] | None = None,
    ) -> None:
        if not isinstance(method, Fusion):
            if rank_constant == 0:
                raise ConfigError("fusion: rank_constant=0; expected a number above 0")
            method = Fusion(method, weights, normalise, minimum, rank_constant=rank_constant)
        if method.weights is not None and len(method.weights) != len(stages):
            raise ConfigError(f"fusion: {len(method.weights)} weights for {len(stages)} stages")
        if isinstance(method.minimum, (list, tuple)) and len(method.minimum) != len(stages):
            raise ConfigError(
                f"fusion: {len(method.minimum)} values of minimum for {len(stages)} stages"
            )
        self.stages = tuple(stages)
        self.fusion = method
        joint = " | " if self._plain else ", "
        inner = joint.join(stage.name for stage in stages)
        self.name = f"({inner})" if self._plain else f"{method.method}({inner})"

    @classmethod
    def joining(cls, left: Stage, right: Stage) -> Fuse:
        """Return ``left | right``; ``a | b | c`` is one fusion of three lists, not two of two."""
        parts: list[Stage] = []
        for stage in (left, right):
            parts += stage.stages if isinstance(stage, Fuse) and stage._plain else [stage]
        return cls(parts)

    @property
    def weights(self) -> tuple[float, ...] | None:
        """The weights, None where all are 1."""
        return None if self.fusion.weights is None else tuple(self.fusion.weights)

    @property
    def normalise(self) -> str:
        """The normalisation of methods that add scores."""
        return self.fusion.normalise

    @property
    def _plain(self) -> bool:
        return self.fusion == Fusion()

    @property
    def inner(self) -> tuple[Stage, ...]:
        """The stages that are fused."""
        return self.stages

    def over(self, inner: Sequence[Stage]) -> Stage:
        """Return the fusion of other stages."""
        return Fuse(inner, method=self.fusion)

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Run every stage to its full depth and fuse their runs."""
        depth = max(DEPTH, k or 0)
        runs = [stage.run(queries, given, depth) for stage in self.stages]
        fusion = self.fusion
        if fusion.normalise == "theoretical-min" and fusion.minimum is None:
            fusion = replace(fusion, minimum=[_least_score(stage) for stage in self.stages])
        return fusion.fuse(runs)


def _least_score(stage: Stage) -> float:
    """Return the least score that a retriever can give: 0 for impacts, -1 for cosine."""
    retriever: Any = stage
    while isinstance(retriever, (Cut, Filtered)):
        retriever = retriever.stage if isinstance(retriever, Cut) else retriever.retriever
    index = getattr(retriever, "index", None)
    if index is not None:
        metric = index.innermost.metric
        if metric is None:
            return 0.0
        if metric == "cosine" or (metric == "ip" and getattr(retriever.encoder, "normalize", 0)):
            return -1.0
    raise ConfigError(
        f"normalise='theoretical-min': the least score of {stage.name} is not known; give "
        "minimum=, a number or one for each stage, such as 0 for BM25 and SPLADE, -1 for cosine"
    )


def fused(
    *stages: Stage,
    method: str | None = None,
    weights: list[float] | None = None,
    normalise: str | None = None,
    minimum: float | list[float] | None = None,
    rank_constant: float | None = None,
    phi: float | None = None,
    gamma: float | None = None,
    sigma: float | None = None,
    fitted: str | None = None,
) -> Fuse:
    """``fused(a, b, method='isr')`` of a pipeline: see ``Fusion``; any of its methods.

    ``fitted`` is a file that ``FusionFit.save`` wrote: its method, options and weights, before
    those given here.
    """
    options: dict[str, Any] = {
        "weights": weights, "normalise": normalise, "minimum": minimum, "phi": phi,
        "rank_constant": rank_constant, "gamma": gamma, "sigma": sigma,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    if len(stages) < 2 or not all(isinstance(stage, Stage) for stage in stages):
        raise ConfigError("fuses two stages or more")
    if rank_constant is not None and rank_constant <= 0:
        raise ConfigError(f"fusion: rank_constant={rank_constant!r}; expected a number above 0")
    if fitted is None:
        return Fuse(stages, method=Fusion(method or "rrf", **given))
    fit = FusionFit.load(fitted)
    if method not in (None, fit.fusion.method):
        raise ConfigError(
            f"fitted={fitted!r}: was fitted as {fit.fusion.method}, not {method}; write "
            f"fused(..., fitted={fitted!r})"
        )
    if weights is not None:
        raise ConfigError("weights and fitted: both say the weights; expected one of the two")
    count = len(fit.fusion.weights or ())
    if count != len(stages):
        raise ConfigError(
            f"fitted={fitted!r}: was fitted to {count} stages ({', '.join(fit.names)}), here are "
            f"{len(stages)}; fit it again"
        )
    return Fuse(stages, method=replace(fit.fusion, **given))


def rrf(
    *stages: Stage,
    rank_constant: float | None = None,
    weights: list[float] | None = None,
    fitted: str | None = None,
) -> Fuse:
    """``rrf(a, b, ...)`` of a pipeline: sums of reciprocal ranks, see ``Fusion``."""
    return fused(*stages, method="rrf", rank_constant=rank_constant, weights=weights, fitted=fitted)


def weighted(
    *stages: Stage,
    weights: list[float] | None = None,
    normalise: str | None = None,
    minimum: float | list[float] | None = None,
    fitted: str | None = None,
) -> Fuse:
    """``weighted(a, b, ...)`` of a pipeline: sums of normalised scores, see ``Fusion``."""
    return fused(
        *stages, method="weighted", weights=weights, normalise=normalise, minimum=minimum,
        fitted=fitted,
    )  # fmt: skip


def rank_biased(
    *stages: Stage,
    phi: float | None = None,
    weights: list[float] | None = None,
    fitted: str | None = None,
) -> Fuse:
    """``rank_biased(a, b, phi=0.8)`` of a pipeline: rank-biased centroids, see ``Fusion``."""
    return fused(*stages, method="rank_biased", phi=phi, weights=weights, fitted=fitted)


def comb_sum(*stages: Stage, normalise: str | None = None) -> Fuse:
    """``comb_sum(a, b)`` of a pipeline: sums of the scores of those that found it."""
    return fused(*stages, method="comb_sum", normalise=normalise)


def comb_mnz(*stages: Stage, normalise: str | None = None) -> Fuse:
    """``comb_mnz(a, b)`` of a pipeline: these sums times how many found it."""
    return fused(*stages, method="comb_mnz", normalise=normalise)
