"""An encoder with its four methods and nothing else goes through all that a retriever does."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.encoders import BM25Encoder
from sluice.encoders.encoder import Dense
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import Document, Passages, Retriever
from sluice.retrieval.stages.feedback.dense import prf

DOCUMENTS = [
    Document("a", "", "a channel of water over gold"),
    Document("b", "", "dense vectors of sentences"),
    Document("c", "", "water " * 30 + "and a gold coin at the end"),
]


class Bare:
    """Counts of words, hashed."""

    def __init__(self, width: int = 64) -> None:
        self._width = width

    @property
    def fingerprint(self) -> str:
        return f"bare-{self._width}"

    def encode_queries(self, texts: Sequence[str]) -> Dense:
        vectors = np.zeros((len(texts), self._width), np.float32)
        for row, text in enumerate(texts):
            for word in text.split():
                vectors[row, zlib.crc32(word.encode()) % self._width] += 1
        return vectors

    encode_documents = encode_queries

    def save_pretrained(self, path: str | Path) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / "width.json").write_text(json.dumps(self._width), encoding="utf-8")

    @classmethod
    def from_pretrained(cls, path: Path) -> Bare:
        return cls(json.loads((Path(path) / "width.json").read_text(encoding="utf-8")))


class Counting:
    """BM25 without its base: what it learns from documents is found by name."""

    def __init__(self) -> None:
        self._inner = BM25Encoder()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)


def best(retriever: Retriever, query: str) -> list[str]:
    return [hit.doc_id for hit in retriever.search(query, k=2)]


@pytest.mark.parametrize(
    "passages", [None, Passages(length=8, overlap=0), Passages(8, 0, aggregate="mean")]
)
def test_built_searched_changed_and_opened(passages: Passages | None, tmp_path: Path) -> None:
    retriever = Retriever.build(Bare(), DOCUMENTS, path=tmp_path / "r", passages=passages)
    assert best(retriever, "dense sentences")[0] == "b"
    assert retriever.least_score is None
    if passages is None or passages.aggregate != "max":
        assert prf(retriever, k=1).search("dense", k=1)[0].doc_id == "b"
    assert retriever.add([Document("d", "", "a violin")]) == 1
    assert best(retriever, "violin")[0] == "d"
    assert retriever.delete(["b"]) == 1
    retriever.compact()
    assert len(retriever) == 3
    assert "b" not in best(retriever, "dense sentences")
    with pytest.raises(ConfigError, match="explain needs a sparse index"):
        retriever.explain("violin", "d")
    allowed = f"{Bare.__module__}:{Bare.__qualname__}"
    opened = Retriever.open(tmp_path / "r", allow=[allowed])
    assert best(opened, "violin") == best(retriever, "violin")


def test_what_it_learns_from_documents_is_found_by_name(tmp_path: Path) -> None:
    counting: Any = Counting()
    counted = Retriever.build(counting, DOCUMENTS, path=tmp_path / "counting")
    known = Retriever.build(BM25Encoder(), DOCUMENTS, path=tmp_path / "bm25")
    for retriever in (counted, known):
        retriever.add([Document("d", "", "gold violin")])
        retriever.delete(["a"])
    queries = {"1": "gold water", "2": "violin"}
    assert counted.run(queries).to_dict() == known.run(queries).to_dict()
    assert counted.encoder.fingerprint == known.encoder.fingerprint
    assert counted.explain("gold", "d").terms[0].term == "gold"
