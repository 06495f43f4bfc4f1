"""Exact search over dense rows, with an optional compressed or binary first pass.

May import: `indexing.index` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.indexing.flat.index import FlatIndex as FlatIndex
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
