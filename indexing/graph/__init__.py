"""Vectors in a graph of nearest neighbours, searched greedily by any function that scores them.

May import: `indexing.flat`, `indexing.faiss` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.indexing.graph.index import GraphIndex as GraphIndex
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
