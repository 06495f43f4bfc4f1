"""The inverted index of impacts, for BM25 and SPLADE, with provably exact search.

May import: `indexing.index`, `indexing.folder` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.indexing.inverted.index import InvertedIndex as InvertedIndex
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
