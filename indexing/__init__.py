"""Vectors in, hits out: exact, approximate and inverted indexes with one interface.

May import: `encoders.foundation` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.indexing.auto.index import AutoIndex as AutoIndex
    from sluice.indexing.databases.pgvector.index import PgvectorIndex as PgvectorIndex
    from sluice.indexing.databases.qdrant.index import QdrantIndex as QdrantIndex
    from sluice.indexing.faiss.index import FaissIndex as FaissIndex
    from sluice.indexing.flat.index import FlatIndex as FlatIndex
    from sluice.indexing.folder import open_index as open_index
    from sluice.indexing.hits import Hits as Hits
    from sluice.indexing.index import Index as Index
    from sluice.indexing.inverted.index import InvertedIndex as InvertedIndex
    from sluice.indexing.own.augmentations import DocumentBias as DocumentBias, MipsToL2 as MipsToL2
    from sluice.indexing.own.augmented import AugmentedIndex as AugmentedIndex
    from sluice.indexing.own.fm.index import FmIndex as FmIndex
    from sluice.indexing.own.fm.trie import TrieIndex as TrieIndex
    from sluice.indexing.own.graph.index import GraphIndex as GraphIndex
    from sluice.indexing.own.graph.query_graph import QueryGraphIndex as QueryGraphIndex
    from sluice.indexing.own.pseudo_queries import PseudoQueryIndex as PseudoQueryIndex
    from sluice.indexing.table import INDEXES as INDEXES
    from sluice.indexing.tokens.index import TokenIndex as TokenIndex
    from sluice.indexing.wrappers.fan_out import partial_results as partial_results
    from sluice.indexing.wrappers.funnel import FunnelIndex as FunnelIndex
    from sluice.indexing.wrappers.passages import PassageIndex as PassageIndex
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
