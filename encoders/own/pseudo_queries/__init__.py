"""Documents as a few vectors, the centroids of their own tokens' states (pseudo-query embeddings).

May import: `encoders.transformer` and below, and of `encoders.dense` the poolings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.own.pseudo_queries.encoder import (
        PseudoQueryEncoder as PseudoQueryEncoder,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
