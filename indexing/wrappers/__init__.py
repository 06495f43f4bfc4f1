"""Indexes around another index: passages of documents, funnels, shards.

Those of single papers lie in `indexing/own`; this room's face alone names them.
May import: `indexing.index`, `indexing.flat`, `indexing.tokens`, `indexing.folder` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.indexing.own.augmentations import DocumentBias as DocumentBias, MipsToL2 as MipsToL2
    from sluice.indexing.own.augmented import AugmentedIndex as AugmentedIndex
    from sluice.indexing.own.pseudo_queries import PseudoQueryIndex as PseudoQueryIndex
    from sluice.indexing.wrappers.funnel import FunnelIndex as FunnelIndex
    from sluice.indexing.wrappers.passages import PassageIndex as PassageIndex
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
