"""FAISS as an ``Index``: any factory string, filters, deletion, binary codes.

May import: `indexing.index`, `indexing.flat`, `indexing.folder` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.indexing.faiss.index import FaissIndex as FaissIndex
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
