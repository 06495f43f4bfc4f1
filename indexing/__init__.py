"""Vectors in, hits out: exact, approximate and inverted indexes behind one class.

The names load on first use, so that ``import indexing`` needs neither faiss nor numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from encoders.lazy import lazy

if TYPE_CHECKING:
    from indexing.augmented import AugmentedIndex as AugmentedIndex
    from indexing.auto import AutoIndex as AutoIndex
    from indexing.document_bias import DocumentBias as DocumentBias
    from indexing.faiss_index import FaissIndex as FaissIndex
    from indexing.flat import FlatIndex as FlatIndex
    from indexing.folder import open_index as open_index
    from indexing.funnel import FunnelIndex as FunnelIndex
    from indexing.hits import Hits as Hits
    from indexing.index import Index as Index
    from indexing.inverted import InvertedIndex as InvertedIndex
    from indexing.mips_to_l2 import MipsToL2 as MipsToL2
    from indexing.passage_index import PassageIndex as PassageIndex
    from indexing.table import INDEXES as INDEXES
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "indexing.augmented": ["AugmentedIndex"],
            "indexing.auto": ["AutoIndex"],
            "indexing.document_bias": ["DocumentBias"],
            "indexing.faiss_index": ["FaissIndex"],
            "indexing.flat": ["FlatIndex"],
            "indexing.folder": ["open_index"],
            "indexing.funnel": ["FunnelIndex"],
            "indexing.hits": ["Hits"],
            "indexing.index": ["Index"],
            "indexing.inverted": ["InvertedIndex"],
            "indexing.mips_to_l2": ["MipsToL2"],
            "indexing.passage_index": ["PassageIndex"],
            "indexing.table": ["INDEXES"],
        },
    )
