"""Retrievers, indexes and encoders can be copied, and sent to other processes, as stages can."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy import sparse
from small_world import documents
from sparse_codes import save_csr
from static_embeddings import save_static
from tiny_generators import save_t5

from sluice.encoders import BM25Encoder, PrecomputedEncoder, VocabularyEncoder
from sluice.encoders.dense.error_adapter import ErrorAdapter
from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.tokens import TokenSequences, TokenVectors, WeightedNgrams
from sluice.encoders.table import ENCODERS, RERANKERS
from sluice.indexing import Index, InvertedIndex, open_index
from sluice.indexing.table import DATABASES, INDEXES
from sluice.retrieval import Document, Retriever

WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
    "deepcopy": copy.deepcopy,
}
CORPUS = documents()


INNER = {"type": "flat"}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "augmented": {"inner": INNER, "augmentation": {"type": "document_bias", "missing": 0.0}},
    "faiss": {"factory": "HNSW4"},
    "funnel": {"dimensions": 4, "depth": 100},
    "passages": {"inner": INNER},
}


@pytest.mark.parametrize("name", [name for name in INDEXES if name not in ("auto", *DATABASES)])
def test_indexes(name: str, tmp_path: Path) -> None:
    index: Index = build({"type": name, **ARGUMENTS.get(name, {})}, INDEXES, where="index")
    empty = [way(index) for way in WAYS.values()]
    vectors: Any = np.random.default_rng(1).random((30, 8), np.float32)
    if name == "tokens":
        vectors = TokenVectors(vectors, np.arange(0, 31, 3))
    elif name == "fm":
        vectors = TokenSequences(np.arange(90) % 7, np.arange(0, 91, 3))
    elif name == "trie":
        vectors = TokenSequences(np.arange(90), np.arange(0, 91, 3))
    elif index.metric is None:
        vectors = sparse.csr_array(vectors)
    for each in (index, *empty):
        each.add(vectors)
        each.delete([3])
    queries: Any = vectors[:3]
    if name == "fm":
        queries = WeightedNgrams.of([[([1, 2], 1.0), ([5], 0.5)]] * 3)
    elif name == "trie":
        queries = WeightedNgrams.of([[([0, 1, 2], 1.0), ([6, 7, 8], 0.5)]] * 3)
    expected = index.search(queries, 5)
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    copies = [way(one) for one in (index, opened) for way in WAYS.values()]
    if isinstance(index, InvertedIndex):  # the addresses of its arrays stay its own
        assert all(each._present is None and each._tables is None for each in copies)
    for each in (*empty, *copies):
        found = each.search(queries, 5)
        assert (found.rows == expected.rows).all()
        assert (found.scores == expected.scores).all()
        each.delete([int(found.rows[0, 0])])
    assert (index.search(queries, 5).rows == expected.rows).all()


def with_heads(bert: Path, folder: Path) -> Path:
    """Return a copy of a model with two heads beside it, in BGE-M3's layout."""
    shutil.copytree(bert, folder)
    for name, outputs in (("sparse", 1), ("colbert", 8)):
        head = {"weight": torch.rand(outputs, 32), "bias": torch.ones(outputs)}
        save_file(head, folder / f"{name}_linear.safetensors")
    return folder


def with_adapter(bert: Path, folder: Path) -> None:
    """A tiny BERT with an error adapter beside it."""
    shutil.copytree(bert, folder)
    ErrorAdapter(32, 4).save(folder)


FOLDERS: dict[str, Callable[[Path, Path], object]] = {
    "csr": save_csr,
    "static": lambda bert, folder: save_static(folder),
    "rrra": with_adapter,
    "three_heads": with_heads,
}


def answer(name: str, one: Any, texts: list[str]) -> Any:
    if name == "listwise":
        return one.log_probabilities([("gold", [text]) for text in texts])
    if name in RERANKERS:
        return one.score([("gold", text) for text in texts])
    if name == "dsi":
        return one.encode_documents([{"id": each, "title": "", "text": each} for each in texts]).ids
    found = one.encode_documents(texts).ids if name == "seal" else one.encode_queries(texts)
    return found.toarray() if sparse.issparse(found) else found


# Of ``http``, which needs a server, dense/test_http_encoder.py looks.
@pytest.mark.thorough
@pytest.mark.parametrize("name", [*sorted(ENCODERS.keys() - {"http"}), *RERANKERS])
def test_encoders(
    name: str, bert: Path, masked_bert: Path, pair_bert: Path, tmp_path: Path
) -> None:
    if name in ("seal", "dsi", "true_false", "listwise"):  # which write
        bert = save_t5(tmp_path / "t5")
    texts = ["gold river", "stone water"]
    models = {"splade": masked_bert, "cross_encoder": pair_bert, "pyramid": pair_bert}
    spec: dict[str, Any] = {"type": name, "model": str(models.get(name, bert))}
    if name == "listwise":
        spec["prompt"] = "{query} {documents}"
    if name == "bm25":
        spec = {"type": name}
    elif name == "towers":
        part = {"type": "dense", "model": str(bert)}
        spec = {"type": name, "query": part, "document": part}
    elif name in ("precomputed", "vocabulary"):
        made: Any = VocabularyEncoder(texts[0].split())
        if name == "precomputed":
            made = PrecomputedEncoder(texts, np.eye(2, dtype=np.float32))
        made.save_pretrained(tmp_path / name)
        spec["model"] = str(tmp_path / name)
    elif name in FOLDERS:
        FOLDERS[name](bert, tmp_path / name)
        spec["model"] = str(tmp_path / name)
        spec |= {"head": "sparse"} if name == "three_heads" else {}
    elif name == "concepts":
        (tmp_path / "concepts.txt").write_text("gold\nwater\n")
        spec["vocabulary"] = str(tmp_path / "concepts.txt")
    elif name == "experts":
        spec["experts"] = 2
    encoder = build(spec, {**ENCODERS, **RERANKERS}, where="encoder")
    if name == "bm25":
        encoder.fit(texts)

    expected = answer(name, encoder, texts)
    for way in WAYS.values():
        assert way(encoder).fingerprint == encoder.fingerprint
        # Where a copy's weights lie in memory may change a product's last digit.
        np.testing.assert_allclose(answer(name, way(encoder), texts), expected, rtol=1e-6)


def lengths(texts: list[str]) -> np.ndarray[Any, Any]:
    return np.array([[len(text), 1.0] for text in texts], np.float32)


def test_a_function_goes_with_its_retriever(tmp_path: Path) -> None:
    retriever = Retriever.build(lengths, CORPUS, path=tmp_path / "r")
    retriever.params = {}
    expected = retriever.search("gold", 5)
    for way in WAYS.values():
        assert way(retriever).search("gold", 5) == expected


def test_a_temporary_retriever_is_copied_but_not_sent(tmp_path: Path) -> None:
    retriever = Retriever.build(BM25Encoder(), CORPUS, name="bm25")
    with pytest.raises(ConfigError, match=r"bm25: cannot be pickled .* save\(path\)"):
        pickle.dumps(retriever % 5)
    other = copy.deepcopy(retriever % 5)
    copied = copy.copy(retriever)
    copied.add([Document("new", "", "gold gold gold")])
    expected = retriever.search("gold", 5)
    del retriever
    assert other.search("gold") == expected
    assert copied.search("gold", 1)[0].doc_id == "new"
    copied.save(tmp_path / "saved")
    assert pickle.loads(pickle.dumps(Retriever.open(tmp_path / "saved"))).search("gold", 1)


def test_a_stage_goes_to_a_spawned_process(tmp_path: Path) -> None:
    bm25 = Retriever.build(BM25Encoder(), CORPUS, path=tmp_path / "r")
    stage = (bm25 | bm25 % 5) % 10
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(stage.search, ("gold river",)) == stage.search("gold river")
