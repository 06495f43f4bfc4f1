"""The built-in index types by the names that YAML files and saved folders use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

INDEXES: Final[Mapping[str, str]] = {
    "flat": "indexing.flat:FlatIndex",
    "faiss": "indexing.faiss_index:FaissIndex",
    "inverted": "indexing.inverted:InvertedIndex",
    "funnel": "indexing.funnel:FunnelIndex",
    "augmented": "indexing.augmented:AugmentedIndex",
    "auto": "indexing.auto:AutoIndex",  # a recipe: what it chooses is one of the others
    "passages": "indexing.passage_index:PassageIndex",
}

AUGMENTATIONS: Final[Mapping[str, str]] = {
    "document_bias": "indexing.document_bias:DocumentBias",
    "mips_to_l2": "indexing.mips_to_l2:MipsToL2",
}
