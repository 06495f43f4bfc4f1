"""Fusion of runs: reciprocal rank, weighted, CombSUM, Condorcet, ranx's, and fitted weights.

May import: `retrieval.runs`, `retrieval.evaluation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.fitting.fusion_fit import (
        FusionFit as FusionFit,
        fit_fusion as fit_fusion,
    )
    from sluice.retrieval.pipelines.fusion.fusion import Fusion as Fusion
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
