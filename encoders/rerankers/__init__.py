"""Models that score a query and a document together: cross-encoders and language models.

May import: `encoders.transformer` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.rerankers.cross_encoder import CrossEncoder as CrossEncoder
    from sluice.encoders.rerankers.external import FunctionScorer as FunctionScorer
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
