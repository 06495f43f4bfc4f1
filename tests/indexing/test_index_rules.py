"""Every kind of index keeps the rules that ``sluice.retrieval.testing`` ships."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing import FaissIndex, FlatIndex
from sluice.indexing.table import DATABASES, INDEXES
from sluice.retrieval.testing import check_index

# What a type of the table needs to be made, or to be exact.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "augmented": {
        "inner": {"type": "flat"},
        "augmentation": {"type": "document_bias", "missing": 0.0},
    },
    "faiss": {"factory": "Flat"},
    "funnel": {"dimensions": 4, "depth": 100},
    "passages": {"inner": {"type": "flat"}},
    "tokens": {"store": "float32"},
}
# A recipe is not an index: it makes one of the others. In ``fm`` and ``trie`` queries and
# documents are no vectors of one kind; ``tests/indexing/fm`` compares them with brute force.
# Databases have to be started: ``tests/indexing/databases`` does.
OTHERS = ("auto", "fm", "trie", *DATABASES)


@pytest.mark.parametrize("name", [name for name in INDEXES if name not in OTHERS])
def test_types_of_the_table(name: str) -> None:
    spec = {"type": name, **ARGUMENTS.get(name, {})}
    check_index(
        lambda: build(spec, INDEXES, where="index"), ties=name != "faiss", tokens=name == "tokens"
    )


def test_kinds(kind: Any) -> None:
    check_index(kind.make, ties=not kind.name.startswith("faiss"), tokens=kind.tokens)


@pytest.mark.parametrize("factory", ["HNSW8", "IVF4,Flat", "PQ4x4", "SQ8", "IVF4,PQ4x4fs"])
def test_approximate_indexes(factory: str) -> None:
    check_index(lambda: FaissIndex(factory), exact=False, count=400)


def test_an_index_with_a_hook_that_nothing_calls_is_told_so() -> None:
    with pytest.raises(ConfigError, match=r"Own: has _search_parameters, .* property _parameters"):
        type("Own", (FlatIndex,), {"_search_parameters": lambda self: ("probe",)})
