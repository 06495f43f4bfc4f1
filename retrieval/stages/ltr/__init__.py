"""Learning to rank over features of a candidate list.

May import: `retrieval.stages.rerankers`, `retrieval.retrievers` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.stages.ltr.ranker import LearnedRanker as LearnedRanker
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
