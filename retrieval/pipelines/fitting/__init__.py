"""Stages that are fitted on judged queries: what is open in a pipeline, and how it is chosen.

May import: `retrieval.runs`, `retrieval.evaluation`, and the rest of `retrieval.pipelines`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.fitting.fitter import fit_on as fit_on, fitted as fitted
    from sluice.retrieval.pipelines.fitting.rerank_fit import (
        RerankFit as RerankFit,
        fit_rerank as fit_rerank,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
