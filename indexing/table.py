"""The built-in index types by the names that YAML files and saved folders use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sluice.encoders.foundation.build import Core

INDEXES: Final[Mapping[str, str]] = {
    "flat": Core("sluice.indexing.flat.index:FlatIndex"),
    "faiss": Core("sluice.indexing.faiss.index:FaissIndex"),
    "inverted": Core("sluice.indexing.inverted.index:InvertedIndex"),
    "graph": "sluice.indexing.graph.index:GraphIndex",
    "query_graph": "sluice.indexing.graph.query_graph:QueryGraphIndex",
    "tokens": Core("sluice.indexing.tokens.index:TokenIndex"),
    "fm": "sluice.indexing.fm.index:FmIndex",
    "trie": "sluice.indexing.fm.trie:TrieIndex",
    "funnel": "sluice.indexing.wrappers.funnel:FunnelIndex",
    "augmented": "sluice.indexing.wrappers.augmented:AugmentedIndex",
    "auto": "sluice.indexing.auto.index:AutoIndex",  # what it chooses is one of the others
    "pseudo_queries": "sluice.indexing.wrappers.pseudo_queries:PseudoQueryIndex",
    "pgvector": "sluice.indexing.databases.pgvector.index:PgvectorIndex",
    "passages": "sluice.indexing.wrappers.passages:PassageIndex",
    "qdrant": "sluice.indexing.databases.qdrant.index:QdrantIndex",
}

# Those that lie in a database, the settings that say where it is, and where it is without them.
DATABASES: Final[Mapping[str, Mapping[str, str]]] = {
    "pgvector": {"dsn": "postgresql://"},
    "qdrant": {"path": "", "url": ""},
}

AUGMENTATIONS: Final[Mapping[str, str]] = {
    "document_bias": "sluice.indexing.wrappers.augmentations:DocumentBias",
    "mips_to_l2": "sluice.indexing.wrappers.augmentations:MipsToL2",
}
