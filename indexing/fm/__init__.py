"""Token sequences: the FM-index of their n-grams, and the trie of whole ones, identifiers.

May import: `indexing.index`, `indexing.folder` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.indexing.fm.index import FmIndex as FmIndex
    from sluice.indexing.fm.trie import TrieIndex as TrieIndex
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
