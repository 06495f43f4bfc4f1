"""The fusions of pipeline expressions: ``rrf(a, b)``, ``weighted(a, b)`` and the other methods."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.pipelines.fitting.fusion_fit import FusionFit
from sluice.retrieval.pipelines.fusion.fusion import Fusion
from sluice.retrieval.pipelines.operators import Fuse
from sluice.retrieval.pipelines.stage import Stage


def fused(
    *stages: Stage,
    method: Annotated[
        str | None, "The fusion: rrf, weighted, or any other of `sluice fit fusion`."
    ] = None,
    weights: Annotated[list[float] | None, "One weight for each part; left out, all alike."] = None,
    normalise: str | None = None,
    minimum: Annotated[
        float | list[float] | None,
        "The least score of theoretical-min: a number, or one for each part.",
    ] = None,
    rank_constant: Annotated[
        float | None, "The constant of 1 / (rank_constant + rank): 60."
    ] = None,
    phi: Annotated[float | None, "The persistence of rank-biased centroids."] = None,
    gamma: Annotated[float | None, "The exponent of comb_gmnz."] = None,
    sigma: Annotated[float | None, "The sigma of logn_isr."] = None,
    fitted: str | None = None,
) -> Fuse:
    """``fused(a, b, method='isr')`` of a pipeline: see ``Fusion``; any of its methods.

    ``fitted`` is a file that ``FusionFit.save`` wrote: its method, options and weights are used
    unless the call gives others.
    """
    options: dict[str, Any] = {
        "weights": weights, "normalise": normalise, "minimum": minimum, "phi": phi,
        "rank_constant": rank_constant, "gamma": gamma, "sigma": sigma,
    }  # fmt: skip
    changed = {name: value for name, value in options.items() if value is not None}
    if len(stages) < 2 or not all(isinstance(stage, Stage) for stage in stages):
        raise ConfigError(f"expected at least 2 stages to fuse, got {len(stages)}")
    if rank_constant is not None and rank_constant <= 0:
        raise ConfigError(f"fusion: rank_constant={rank_constant!r}; expected a number above 0")
    if fitted is None:
        return Fuse(stages, method=Fusion(method or "rrf", **changed))
    fit = FusionFit.load(fitted)
    if method not in (None, fit.fusion.method):
        raise ConfigError(
            f"fitted={fitted!r}: was fitted as {fit.fusion.method}, not {method}; write "
            f"fused(..., fitted={fitted!r})"
        )
    if weights is not None:
        raise ConfigError("weights and fitted: both give weights; expected one of the two")
    try:
        fit.check_parts([stage.name for stage in stages])
    except ConfigError as error:
        raise ConfigError(f"fitted={fitted!r}: {error}") from None
    return Fuse(stages, method=replace(fit.fusion, **changed))


def rrf(
    *stages: Stage,
    rank_constant: Annotated[
        float | None, "The constant of 1 / (rank_constant + rank): 60."
    ] = None,
    weights: Annotated[list[float] | None, "One weight for each part; left out, all alike."] = None,
    fitted: str | None = None,
) -> Fuse:
    """``rrf(a, b, ...)`` of a pipeline: sums of reciprocal ranks, see ``Fusion``."""
    return fused(*stages, method="rrf", rank_constant=rank_constant, weights=weights, fitted=fitted)


def weighted(
    *stages: Stage,
    weights: Annotated[list[float] | None, "One weight for each part; left out, all alike."] = None,
    normalise: str | None = None,
    minimum: Annotated[
        float | list[float] | None,
        "The least score of theoretical-min: a number, or one for each part.",
    ] = None,
    fitted: str | None = None,
) -> Fuse:
    """``weighted(a, b, ...)`` of a pipeline: sums of normalised scores, see ``Fusion``."""
    return fused(
        *stages, method="weighted", weights=weights, normalise=normalise, minimum=minimum,
        fitted=fitted,
    )  # fmt: skip


def rank_biased(
    *stages: Stage,
    phi: Annotated[float | None, "The persistence of rank-biased centroids."] = None,
    weights: Annotated[list[float] | None, "One weight for each part; left out, all alike."] = None,
    fitted: str | None = None,
) -> Fuse:
    """``rank_biased(a, b, phi=0.8)`` of a pipeline: rank-biased centroids, see ``Fusion``."""
    return fused(*stages, method="rank_biased", phi=phi, weights=weights, fitted=fitted)


def comb_sum(*stages: Stage, normalise: str | None = None) -> Fuse:
    """``comb_sum(a, b)`` of a pipeline: sums of the scores of the lists that have the document."""
    return fused(*stages, method="comb_sum", normalise=normalise)


def comb_mnz(*stages: Stage, normalise: str | None = None) -> Fuse:
    """``comb_mnz(a, b)`` of a pipeline: these sums times the number of those lists."""
    return fused(*stages, method="comb_mnz", normalise=normalise)
