"""Vectors in, hits out: exact, approximate and inverted indexes behind one class.

The names load on first use, so that ``import indexing`` needs neither faiss nor numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from indexing.table import INDEXES

if TYPE_CHECKING:
    from indexing.augmented import AugmentedIndex
    from indexing.auto import AutoIndex
    from indexing.document_bias import DocumentBias
    from indexing.faiss_index import FaissIndex
    from indexing.flat import FlatIndex
    from indexing.folder import open_index
    from indexing.funnel import FunnelIndex
    from indexing.hits import Hits
    from indexing.index import Index
    from indexing.inverted import InvertedIndex
    from indexing.mips_to_l2 import MipsToL2
    from indexing.passage_index import PassageIndex

__all__ = [
    "INDEXES",
    "AugmentedIndex",
    "AutoIndex",
    "DocumentBias",
    "FaissIndex",
    "FlatIndex",
    "FunnelIndex",
    "Hits",
    "Index",
    "InvertedIndex",
    "MipsToL2",
    "PassageIndex",
    "open_index",
]

_HOMES = {
    "AugmentedIndex": "indexing.augmented",
    "AutoIndex": "indexing.auto",
    "DocumentBias": "indexing.document_bias",
    "FaissIndex": "indexing.faiss_index",
    "FlatIndex": "indexing.flat",
    "FunnelIndex": "indexing.funnel",
    "Hits": "indexing.hits",
    "Index": "indexing.index",
    "InvertedIndex": "indexing.inverted",
    "MipsToL2": "indexing.mips_to_l2",
    "PassageIndex": "indexing.passage_index",
    "open_index": "indexing.folder",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
