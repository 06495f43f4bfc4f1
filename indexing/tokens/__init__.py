"""Token vectors in rows of documents, found again by MaxSim, exactly.

May import: `indexing.index` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.indexing.tokens.index import TokenIndex as TokenIndex
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
