"""A retriever and its folder: encoder, index and documents; searching, updating, explaining.

May import: `retrieval.pipelines` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.explanation import Explanation as Explanation
    from sluice.retrieval.retrievers.retriever import Retriever as Retriever
    from sluice.retrieval.retrievers.updates import Updated as Updated
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
