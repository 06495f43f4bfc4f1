"""Stages beyond search and rerank: depth rules, early exit, no answer, hub normalisation.

May import: `retrieval.retrievers` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.stages.hub_normaliser import Normaliser as Normaliser
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
