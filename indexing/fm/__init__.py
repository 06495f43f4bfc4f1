"""The FM-index of token sequences: how often an n-gram occurs, where, and what may follow it.

May import: `indexing.index`, `indexing.folder` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.indexing.fm.index import FmIndex as FmIndex
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
