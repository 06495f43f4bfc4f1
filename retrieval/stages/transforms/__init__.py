"""Queries searched by other texts: by rules or a language model, with drafts, with filters.

May import: `retrieval.retrievers` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.stages.transforms.stage import Each as Each, Transformed as Transformed
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
