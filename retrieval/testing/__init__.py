"""Conformance checks for parts of your own: stages, indexes, encoders and losses.

May import: `retrieval.stages`, `retrieval.retrievers` and below, `training`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.testing.encoder import check_encoder as check_encoder
    from sluice.retrieval.testing.index import check_index as check_index
    from sluice.retrieval.testing.loss import check_loss as check_loss
    from sluice.retrieval.testing.rules import BrokenRule as BrokenRule
    from sluice.retrieval.testing.stage import check_stage as check_stage
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
