"""SPLADE folders as they are published: naver's, Granite's, OpenSearch's with IDF queries."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import ROBERTA
from five_steps import five_steps, searched
from published import SHAPE, byte_pairs, network, word_pieces, write_json
from safetensors.torch import save_file
from sentence_transformers import SparseEncoder

from sluice.encoders import SpladeEncoder
from sluice.encoders.model_files.registry import kind_of, open_encoder

TEXTS = ["gold in the river", "deep water", "a sluice is a search for gold " * 9, "x"]
SPARSE = "sentence_transformers.sparse_encoder.models"


def bert(folder: Path) -> None:
    size = word_pieces(folder, "[CLS]", "[SEP]", "BertTokenizer")
    network(folder, "BertForMaskedLM", vocab_size=size, pad_token_id=1,
            max_position_embeddings=64, **SHAPE)  # fmt: skip


def distil_bert(folder: Path) -> None:
    size = word_pieces(folder, "[CLS]", "[SEP]", "DistilBertTokenizer")
    network(folder, "DistilBertForMaskedLM", vocab_size=size, pad_token_id=1, dim=32, n_layers=2,
            n_heads=4, hidden_dim=64, max_position_embeddings=64,
            initializer_range=0.2)  # fmt: skip


def roberta(folder: Path) -> None:
    size = byte_pairs(folder, "RobertaTokenizer", single="<s> $A </s>", tokens=ROBERTA)
    network(folder, "RobertaForMaskedLM", vocab_size=size, pad_token_id=1, bos_token_id=0,
            eos_token_id=2, max_position_embeddings=66, type_vocab_size=1, **SHAPE)  # fmt: skip


def module(number: int, path: str, kind: str) -> dict[str, Any]:
    return {"idx": number, "name": str(number), "path": path, "type": f"{SPARSE}.{kind}"}


def pooling(place: Path, size: int, activation: str | None) -> None:
    named = {} if activation is None else {"activation_function": activation}
    write_json(place / "config.json", {
        "pooling_strategy": "max", "word_embedding_dimension": size, **named,
    })  # fmt: skip


def settings(folder: Path) -> None:
    write_json(folder / "config_sentence_transformers.json", {
        "model_type": "SparseEncoder", "__version__": {"sentence_transformers": "5.0.0"},
        "prompts": {"query": "", "document": ""}, "default_prompt_name": None,
        "similarity_fn_name": "dot",
    })  # fmt: skip


def agree(ours: Any, theirs: Any) -> None:
    for side in ("query", "document"):
        encode = getattr(theirs, f"encode_{side}")
        expected = np.asarray(encode(TEXTS, convert_to_sparse_tensor=False))
        found = {"query": ours.encode_queries, "document": ours.encode_documents}[side](TEXTS)
        np.testing.assert_allclose(found.toarray(), expected, atol=1e-5)
        assert expected[:3].any(axis=1).all()


SHARED = {
    "splade_v2": (distil_bert, None), "splade-v3": (bert, None),
    "granite-sparse": (roberta, "relu"),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", SHARED)
def test_one_network_for_both_sides(name: str, tmp_path: Path) -> None:
    """naver's v2 and v3, Granite's; with the files of sentence-transformers, and before those."""
    make, activation = SHARED[name]
    folder = tmp_path / "m"
    make(folder)
    bare = open_bare(folder)
    write_json(folder / "modules.json", [
        module(0, "", "MLMTransformer"), module(1, "1_SpladePooling", "SpladePooling"),
    ])  # fmt: skip
    pooling(folder / "1_SpladePooling", bare.dim, activation)
    settings(folder)
    theirs = SparseEncoder(str(folder), device="cpu")
    assert kind_of(folder) == "splade"
    ours = open_encoder(folder, device="cpu")
    for encoder in (ours, bare):
        agree(encoder, theirs)
    ours.save_pretrained(tmp_path / "ours")
    agree(open_encoder(tmp_path / "ours", device="cpu"), theirs)
    agree(ours, SparseEncoder(str(tmp_path / "ours"), device="cpu"))


def open_bare(folder: Path) -> SpladeEncoder:
    return SpladeEncoder.from_pretrained(folder, device="cpu")


@pytest.mark.parametrize(
    ("name", "activation"), [("splade-v3-doc", None), ("doc-v2", "relu"), ("doc-v3", "log1p_relu")]
)
def test_queries_without_a_network(name: str, activation: str | None, tmp_path: Path) -> None:
    """naver's doc (weights of 1) and OpenSearch's (IDF, from v3 on with two logarithms)."""
    folder = tmp_path / "m"
    document, query = folder / "document_0_MLMTransformer", folder / "query_0_SparseStaticEmbedding"
    bert(document)
    bare = open_bare(document)
    shutil.copytree(document, query, ignore=shutil.ignore_patterns("model*", "config.json"))
    weights = torch.rand(bare.dim, generator=torch.Generator().manual_seed(2)) + 0.1
    if name == "splade-v3-doc":
        weights = torch.ones(bare.dim)
    weights[bare.tokenizer.all_special_ids] = 0
    save_file({"weight": weights}, query / "model.safetensors")
    write_json(query / "config.json", {"frozen": False})
    pooling(folder / "document_1_SpladePooling", bare.dim, activation)
    write_json(folder / "modules.json", [module(0, "", "Router")])
    kinds = {"query_0_SparseStaticEmbedding": "SparseStaticEmbedding",
             "document_0_MLMTransformer": "MLMTransformer",
             "document_1_SpladePooling": "SpladePooling"}  # fmt: skip
    write_json(folder / "router_config.json", {
        "types": {place: f"{SPARSE}.{kind}.{kind}" for place, kind in kinds.items()},
        "structure": {"query": list(kinds)[:1], "document": list(kinds)[1:]},
        "parameters": {"default_route": "document", "allow_empty_key": True},
    })  # fmt: skip
    settings(folder)
    theirs = SparseEncoder(str(folder), device="cpu")
    assert kind_of(folder) == "splade"
    ours = open_encoder(folder, device="cpu")
    assert (ours.query_model, ours.activation) == ("idf", activation or "relu")
    agree(ours, theirs)
    ours.save_pretrained(tmp_path / "ours")
    agree(open_encoder(tmp_path / "ours", device="cpu"), theirs)
    if name != "doc-v2":
        return
    # OpenSearch's earlier folders: one network, and idf.json beside it
    tokens = bare.tokenizer.convert_ids_to_tokens(range(bare.dim))
    (document / "idf.json").write_text(json.dumps(dict(zip(tokens, weights.tolist(), strict=True))))
    agree(SpladeEncoder.from_pretrained(document, query_model="idf", device="cpu"), theirs)


@pytest.mark.thorough
@pytest.mark.parametrize("query_model", ["shared", "bow", "idf"])
@pytest.mark.parametrize("name", SHARED)
def test_a_family_is_trained_and_searched(name: str, query_model: Any, tmp_path: Path) -> None:
    SHARED[name][0](tmp_path / "m")
    encoder = SpladeEncoder.from_pretrained(tmp_path / "m", query_model=query_model, device="cpu")
    five_steps(encoder)
    searched(encoder)
