"""The built-in index types by the names that YAML files and saved folders use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

INDEXES: Final[Mapping[str, str]] = {
    "flat": "indexing.flat:FlatIndex",
    "faiss": "indexing.faiss_index:FaissIndex",
    "inverted": "indexing.inverted:InvertedIndex",
}
