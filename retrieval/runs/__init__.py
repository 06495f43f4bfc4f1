"""Runs and rankings, trec files, the one order of ties, and the overlap of two rankings.

May import: `encoders.foundation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.runs.run import Ranking as Ranking, Run as Run
    from sluice.retrieval.runs.several_runs import (
        RankSimilarity as RankSimilarity,
        compare_rankings as compare_rankings,
        rank_biased_overlap as rank_biased_overlap,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
