"""Model judges for unjudged documents, and how well their labels agree with human ones.

May import: `retrieval.experiments` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.studies.judging.grading import (
        GradingJudge as GradingJudge,
        open_grading_judge as open_grading_judge,
    )
    from sluice.retrieval.studies.judging.labelling import (
        filled as filled,
        filled_scores as filled_scores,
        label_pairs as label_pairs,
        pairs_to_label as pairs_to_label,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
