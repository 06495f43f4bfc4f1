"""Separate towers: one of them agrees with the plain encoder, both with sentence-transformers."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import save_model

from sluice.encoders import DenseEncoder, SpladeEncoder, TowerEncoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.registry import kind_of, open_encoder
from sluice.encoders.vectors.worker import reopened


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "small", "Model", num_hidden_layers=1)


@pytest.fixture(scope="module")
def small_masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small-masked"
    return save_model(folder, "ForMaskedLM", num_hidden_layers=1, hidden_size=16)


def dense_towers(bert: Path, small: Path, **options: Any) -> TowerEncoder:
    return TowerEncoder.from_pretrained(
        query={"type": "dense", "model": str(small), "query_prompt": "query: ", "query_length": 12},
        document={"type": "dense", "model": str(bert), "pooling": "cls", "projection": None},
        **options,
    )


def splade_towers(masked_bert: Path, small_masked: Path, **query: Any) -> TowerEncoder:
    return TowerEncoder.from_pretrained(
        query={"type": "splade", "model": str(small_masked), **query},
        document={"type": "splade", "model": str(masked_bert), "activation": "log1p_relu"},
    )


def test_each_side_is_its_tower(bert: Path, small: Path, texts: list[str]) -> None:
    towers = dense_towers(bert, small)
    query = DenseEncoder.from_pretrained(small, query_prompt="query: ", query_length=12)
    document = DenseEncoder.from_pretrained(bert, pooling="cls")
    np.testing.assert_array_equal(towers.encode_queries(texts), query.encode_queries(texts))
    np.testing.assert_array_equal(towers.encode_documents(texts), document.encode_documents(texts))
    assert (towers.dim, towers.similarity) == (32, "cosine")
    assert towers.prompts == {"query": "query: ", "document": ""}
    for side, alone in (("query", query), ("document", document)):
        features = towers.tokenize(texts, side)
        torch.testing.assert_close(towers.embed(features, side), alone.embed(features, side))
        assert towers.token_ids(texts, side) == alone.token_ids(texts, side)
    assert towers.terms is None
    # The same number is another layer.
    assert towers.embed_layers is None
    assert towers.layer_count is None


def test_the_same_model_twice_is_two_copies(bert: Path, texts: list[str]) -> None:
    spec = {"type": "dense", "model": str(bert)}
    towers = TowerEncoder.from_pretrained(query=spec, document=spec)
    before = towers.encode_documents(texts)
    mark = towers.fingerprint
    with torch.no_grad():
        for parameter in towers.module["query"].parameters():
            parameter.add_(0.1)
    np.testing.assert_array_equal(towers.encode_documents(texts), before)
    assert towers.fingerprint != mark
    features = towers.tokenize(texts, "query")
    found = towers.embed_layers(features, "query", [2, 1])
    torch.testing.assert_close(found, towers.query.embed_layers(features, "query", [2, 1]))
    copied = copy.deepcopy(towers)
    assert copied.fingerprint == towers.fingerprint
    assert copied.embed_layers.__self__ is copied
    with pytest.raises(ConfigError, match="same object"):
        TowerEncoder(towers.query, towers.query)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["dense", "splade"])
def test_folders_load_in_sentence_transformers_and_back(
    kind: str,
    bert: Path,
    small: Path,
    masked_bert: Path,
    small_masked: Path,
    texts: list[str],
    tmp_path: Path,
) -> None:
    from sentence_transformers import SentenceTransformer, SparseEncoder

    dense = kind == "dense"
    ours = dense_towers(bert, small) if dense else splade_towers(masked_bert, small_masked)
    ours.save_pretrained(tmp_path / "ours")
    assert kind_of(tmp_path / "ours") == "towers"
    kept = {} if dense else {"convert_to_sparse_tensor": False}
    theirs = (SentenceTransformer if dense else SparseEncoder)(str(tmp_path / "ours"), device="cpu")
    theirs.save(str(tmp_path / "theirs"))
    for folder in ("ours", "theirs"):
        again = open_encoder(tmp_path / folder)
        assert isinstance(again, TowerEncoder)
        assert again.prompts == ours.prompts
        for encoder in (ours, again):
            for found, expected in (
                (encoder.encode_queries(texts), theirs.encode_query(texts, **kept)),
                (encoder.encode_documents(texts), theirs.encode_document(texts, **kept)),
            ):
                plain = found if dense else found.toarray()
                np.testing.assert_allclose(
                    plain, np.asarray(expected), rtol=1e-6, atol=1e-6 if dense else 1e-5
                )
    saved = open_encoder(tmp_path / "ours")
    assert saved.fingerprint == ours.fingerprint
    # a tower opens alone
    alone = open_encoder(tmp_path / "ours" / "document")
    assert alone.fingerprint == saved.document.fingerprint


def test_modules_behind_a_router_belong_to_both_sides(
    bert: Path, small: Path, texts: list[str], tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Router, Transformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    router = Router.for_query_document(
        [Transformer(str(small)), Pooling(32)], [Transformer(str(bert)), Pooling(32, "cls")]
    )
    theirs = SentenceTransformer(modules=[router, Normalize()], device="cpu")
    theirs.save(str(tmp_path / "theirs"))
    ours = open_encoder(tmp_path / "theirs")
    assert ours.similarity == "cosine"
    np.testing.assert_allclose(ours.encode_queries(texts), theirs.encode_query(texts), atol=1e-6)
    np.testing.assert_allclose(
        ours.encode_documents(texts), theirs.encode_document(texts), atol=1e-6
    )


def test_sparse_towers_name_their_terms(
    masked_bert: Path, small_masked: Path, texts: list[str]
) -> None:
    towers = splade_towers(masked_bert, small_masked, query_top_k=5)
    assert towers.encode_queries(texts).shape == towers.encode_documents(texts).shape
    assert (np.diff(towers.encode_queries(texts).indptr) <= 5).all()
    gold = towers.document.tokenizer.get_vocab()["gold"]
    assert towers.terms([gold]) == ["gold"]


def test_a_frozen_tower_needs_no_gradient_and_drops_nothing_out(
    bert: Path, small: Path, texts: list[str]
) -> None:
    towers = dense_towers(bert, small, freeze="document")
    towers.module.train()
    assert towers.query.module.training
    assert not any(part.training for part in towers.document.module.modules())
    features = towers.tokenize(texts, "document")
    first, second = (towers.embed(features, "document") for _ in range(2))
    assert torch.equal(first, second)
    assert not first.requires_grad
    assert towers.embed(towers.tokenize(texts, "query"), "query").requires_grad
    assert not any(p.requires_grad for p in towers.document.module.parameters())
    assert all(p.requires_grad for p in towers.query.module.parameters())


def test_towers_that_do_not_compare_are_refused(
    bert: Path, small: Path, masked_bert: Path, tmp_path: Path
) -> None:
    dense = {"type": "dense", "model": str(bert)}
    splade = {"type": "splade", "model": str(masked_bert)}
    for query, document, words in (
        (dense, splade, "type differ: query dense, document splade"),
        ({**dense, "projection": 8}, dense, "dimensions differ: query 8, document 32"),
        ({**dense, "normalize": False}, dense, "similarity differ: query dot, document cosine"),
        ({**splade, "query_model": "bow"}, splade, "needs no tower for queries"),
        ({"type": "bm25"}, dense, r"query\.type: .*'bm25'"),
        ({**dense, "poling": "cls"}, dense, r"query\.poling: .*did you mean 'pooling'"),
    ):
        with pytest.raises(ConfigError, match=words):
            TowerEncoder.from_pretrained(query=query, document=document)
    other = save_model(tmp_path / "other", "ForMaskedLM")
    state = json.loads((other / "tokenizer.json").read_text())
    vocabulary = state["model"]["vocab"]
    vocabulary["gold"], vocabulary["stone"] = vocabulary["stone"], vocabulary["gold"]
    (other / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(ConfigError, match="vocabularies differ"):
        TowerEncoder.from_pretrained(query={**splade, "model": str(other)}, document=splade)
    with pytest.raises(ConfigError, match="freeze: 'queries'"):
        dense_towers(bert, small, freeze="queries")


def test_folders_of_the_other_kind_say_what_opens_them(
    bert: Path, small: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="no towers; give both"):
        TowerEncoder.from_pretrained(bert)
    with pytest.raises(ConfigError, match="needs query and document"):
        TowerEncoder.from_pretrained(query={"type": "dense", "model": str(bert)})
    dense_towers(bert, small).save_pretrained(tmp_path / "towers")
    with pytest.raises(ConfigError, match="leave out query"):
        TowerEncoder.from_pretrained(tmp_path / "towers", query={"type": "dense"})
    for wrong in (DenseEncoder, SpladeEncoder):
        with pytest.raises(ModelError, match="type: towers"):
            wrong.from_pretrained(tmp_path / "towers")


def test_a_damaged_router_is_refused(bert: Path, small: Path, tmp_path: Path) -> None:
    dense_towers(bert, small).save_pretrained(tmp_path / "towers")
    routes = json.loads((tmp_path / "towers" / "router_config.json").read_text())
    outside = {"types": {**routes["types"], "../out": "x.Transformer"}}
    outside["structure"] = {**routes["structure"], "query": ["../out"]}
    third = {**routes, "structure": {**routes["structure"], "image": []}}
    for number, (value, words) in enumerate(
        (({}, "expected types"), (outside, "leads out"), (third, "routes image"))
    ):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "towers", folder)
        (folder / "router_config.json").write_text(json.dumps(value))
        with pytest.raises(ModelError, match=words):
            open_encoder(folder)


@pytest.mark.usefixtures("bfloat16")
def test_another_process_would_open_the_same(
    bert: Path, small: Path, texts: list[str], tmp_path: Path
) -> None:
    towers = dense_towers(bert, small)
    towers.save_pretrained(tmp_path / "towers")
    again = reopened(str(tmp_path / "towers"), "", {"dtype": "bfloat16", "batch_tokens": 9})
    assert (again.dtype, again.batch_tokens) == (torch.bfloat16, 9)
    again.batch_tokens = 64
    assert again.query.batch_tokens == 64
    assert again.backend is None
    np.testing.assert_allclose(
        again.encode_documents(texts), towers.encode_documents(texts), atol=0.05
    )
