"""Static embeddings: sentence-transformers' vectors, model2vec's formula, towers, training."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from five_steps import five_steps, searched
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router
from sentence_transformers.sentence_transformer import modules as theirs
from static_embeddings import DIM, TABLE, save_static, tokenizer

from sluice.encoders import DenseEncoder, StaticEncoder, TowerEncoder, as_encoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.probes import verify_probes
from sluice.encoders.model_files.registry import kind_of, open_encoder
from sluice.encoders.model_files.router import SIDES
from sluice.training.losses.composed.matryoshka import note_dims

TEXTS = ["gold in the river", "", "日本 gold", "x", "deep water " * 300, "gold in the river", "日"]


@pytest.fixture(scope="module")
def model2vec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model2vec's folder with a quantised vocabulary: embeddings, mapping, weights."""
    folder = tmp_path_factory.mktemp("model2vec") / "m"
    folder.mkdir()
    tokenizer().save(str(folder / "tokenizer.json"))
    drawn = np.random.default_rng(4)
    tensors = {
        "embeddings": torch.from_numpy(TABLE[:20].copy()),
        "mapping": torch.from_numpy(drawn.integers(0, 20, len(TABLE))),
        "weights": torch.from_numpy(drawn.random(len(TABLE))),
    }
    save_file(tensors, folder / "model.safetensors")
    config = {
        "model_type": "model2vec", "architectures": ["StaticModel"], "normalize": True,
        "tokenizer_name": "x", "embedding_dtype": "float32", "vocabulary_quantization": 20,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def mean(texts: list[str], table: np.ndarray, *, skip: bool, most: int | None) -> np.ndarray:
    """The formula in float64: the mean of a text's rows, zeros without any."""
    backend, means = tokenizer(), []
    for text in texts:
        ids = backend.encode(text, add_special_tokens=False).ids
        ids = [token for token in ids if not (skip and token == 1)][:most]
        means.append(table[ids].astype(np.float64).mean(0) if ids else np.zeros(table.shape[1]))
    return np.array(means)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def heads() -> dict[str, list[Any]]:
    torch.manual_seed(1)
    return {
        "alone": [],
        "normalised": [Normalize()],
        "layers": [Dense(DIM, 5), theirs.LayerNorm(5), Normalize()],
    }


@pytest.mark.parametrize("head", heads())
def test_vectors_are_those_of_sentence_transformers(head: str, tmp_path: Path) -> None:
    model = save_static(tmp_path / "m", *heads()[head], prompts={"query": "river: "})
    ours = as_encoder(tmp_path / "m")
    assert isinstance(ours, StaticEncoder)
    assert kind_of(tmp_path / "m") == "static"
    expected = {"query": model.encode_query(TEXTS), "document": model.encode_document(TEXTS)}
    ours.save_pretrained(tmp_path / "ours")
    back = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    np.testing.assert_allclose(back.encode_query(TEXTS), expected["query"], atol=1e-5)
    again = open_encoder(tmp_path / "ours")
    assert again.fingerprint == ours.fingerprint
    for encoder in (ours, again):
        np.testing.assert_allclose(encoder.encode_queries(TEXTS), expected["query"], atol=1e-5)
        vectors = encoder.encode_documents(TEXTS)
        np.testing.assert_allclose(vectors, expected["document"], atol=1e-5)
        assert (vectors.dtype, vectors.shape[1]) == (np.float32, encoder.dim)
    alone = np.concatenate([ours.encode_documents([text]) for text in TEXTS[::-1]])[::-1]
    np.testing.assert_allclose(alone, expected["document"], atol=1e-5)
    embedded = ours.embed(ours.tokenize(TEXTS, "query"), "query")
    np.testing.assert_allclose(embedded.detach().numpy(), expected["query"], atol=1e-5)
    assert ours.encode_queries([]).shape == (0, ours.dim)
    if head == "alone":
        plain = mean(TEXTS, TABLE, skip=False, most=None)
        np.testing.assert_allclose(expected["document"], plain, atol=1e-5)
        assert not ours.encode_documents([""]).any()


def test_model2vecs_folder_by_its_formula(
    model2vec: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Unknown words are left out, then 512 tokens are read."""
    stored = load_file(model2vec / "model.safetensors")
    tensors = {key: value.numpy() for key, value in stored.items()}
    table = tensors["embeddings"][tensors["mapping"]] * tensors["weights"][:, None]
    ours = open_encoder(model2vec)
    expected = unit(mean(TEXTS, table, skip=True, most=512))
    np.testing.assert_allclose(ours.encode_documents(TEXTS), expected, atol=1e-6)
    assert not ours.encode_queries(["日"]).any()
    with caplog.at_level(logging.WARNING, "sluice"):
        ours.save_pretrained(tmp_path / "ours")
    assert "leave out unknown words" in caplog.text
    again = open_encoder(tmp_path / "ours")
    np.testing.assert_allclose(again.encode_documents(TEXTS), expected, atol=1e-6)
    assert again.fingerprint == ours.fingerprint
    # with modules.json, as model2vec writes it today, it is sentence-transformers' to read
    shutil.copytree(model2vec, tmp_path / "m")
    kinds = [(".", "StaticEmbedding"), ("1_Normalize", "Normalize")]
    entries = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(kinds)
    ]
    (tmp_path / "m" / "modules.json").write_text(json.dumps(entries))
    model = SentenceTransformer(str(tmp_path / "m"), device="cpu")
    both = open_encoder(tmp_path / "m")
    np.testing.assert_allclose(both.encode_documents(TEXTS), model.encode(TEXTS), atol=1e-5)
    assert np.abs(both.encode_documents(["日本 gold"]) - expected[2]).max() > 0.01


def test_lengths_dimensions_and_prompts_are_settings(tmp_path: Path) -> None:
    save_static(tmp_path / "m", Normalize())
    whole = StaticEncoder.from_pretrained(tmp_path / "m")
    cut = StaticEncoder.from_pretrained(
        tmp_path / "m", dim=4, query_length=2, document_prompt="gold ", normalize=False
    )
    short = mean(TEXTS, TABLE[:, :4], skip=False, most=2)
    np.testing.assert_allclose(cut.encode_queries(TEXTS), short, atol=1e-6)
    longer = mean(["gold " + text for text in TEXTS], TABLE[:, :4], skip=False, most=None)
    np.testing.assert_allclose(cut.encode_documents(TEXTS), longer, atol=2e-5)
    assert (whole.similarity, cut.similarity, cut.dim) == ("cosine", "dot", 4)
    assert (whole.lengths, cut.lengths) == ({}, {"query": 2})
    cut.save_pretrained(tmp_path / "cut")
    again = StaticEncoder.from_pretrained(tmp_path / "cut")
    assert again.fingerprint == cut.fingerprint != whole.fingerprint
    projected = StaticEncoder.from_pretrained(tmp_path / "m", projection={"dim": 6, "layers": 2})
    assert projected.dim == 6
    for wrong in ({"dim": 13}, {"query_length": 0}, {"projection": 0}):
        with pytest.raises(ConfigError):
            StaticEncoder.from_pretrained(tmp_path / "m", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="query_prompt: takes 1 tokens, but query_length is 1"):
        StaticEncoder.from_pretrained(tmp_path / "m", query_length=1, query_prompt="gold ")


def test_static_queries_beside_a_network_of_documents(
    bert: Path, texts: list[str], tmp_path: Path
) -> None:
    torch.manual_seed(2)
    static = theirs.StaticEmbedding(tokenizer(), embedding_weights=TABLE.copy())
    router = Router.for_query_document(
        query_modules=[static],
        document_modules=[
            theirs.Transformer(str(bert)), theirs.Pooling(32, "cls"), Dense(32, DIM)
        ],
    )  # fmt: skip
    model = SentenceTransformer(modules=[router, Normalize()], device="cpu")
    model.save_pretrained(str(tmp_path / "m"))
    ours = open_encoder(tmp_path / "m", device="cpu")
    assert isinstance(ours, TowerEncoder)
    assert (ours.query.kind, ours.document.kind) == ("static", "dense")
    ours.save_pretrained(tmp_path / "ours")
    back = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    queries, documents = model.encode_query(texts), model.encode_document(texts)
    np.testing.assert_allclose(back.encode_query(texts), queries, atol=1e-5)
    for encoder in (ours, open_encoder(tmp_path / "ours", device="cpu")):
        np.testing.assert_allclose(encoder.encode_queries(texts), queries, atol=1e-5)
        np.testing.assert_allclose(encoder.encode_documents(texts), documents, atol=1e-5)
        assert encoder.lengths == {"document": 64}
    save_static(tmp_path / "static", Normalize())
    made = TowerEncoder.from_pretrained(
        query={"type": "static", "model": str(tmp_path / "static")},
        document={"type": "dense", "model": str(bert), "projection": DIM},
    )
    assert made.encode_queries(texts).shape == (len(texts), DIM)
    with pytest.raises(ConfigError, match="dimensions differ"):
        TowerEncoder.from_pretrained(
            query={"type": "static", "model": str(tmp_path / "static")},
            document={"type": "dense", "model": str(bert)},
        )


def test_two_static_towers_have_no_settings_of_a_network(tmp_path: Path) -> None:
    save_static(tmp_path / "m")
    static = {"type": "static", "model": str(tmp_path / "m")}
    TowerEncoder.from_pretrained(query=static, document=static).save_pretrained(tmp_path / "two")
    with pytest.raises(ConfigError, match="dtype: 'bfloat16'; both towers are static"):
        TowerEncoder.from_pretrained(query=static, document=static, dtype="bfloat16")
    with pytest.raises(ConfigError, match="batch_tokens: 64; both towers are static"):
        TowerEncoder.from_pretrained(tmp_path / "two", batch_tokens=64)
    path = tmp_path / "two" / "router_config.json"
    name = "a\0b"  # no file's
    routes = {"types": {name: "x.StaticEmbedding"}, "structure": {s: [name] for s in SIDES}}
    path.write_text(json.dumps(routes))
    with pytest.raises(ModelError, match="leads out of the folder"):
        TowerEncoder.from_pretrained(tmp_path / "two")


def test_gradients_and_changes_of_the_table(tmp_path: Path) -> None:
    save_static(tmp_path / "m", *heads()["layers"])
    encoder = StaticEncoder.from_pretrained(tmp_path / "m")
    before = encoder.fingerprint
    vectors = encoder.embed(encoder.tokenize(TEXTS[:3], "document"), "document")
    (vectors * torch.randn_like(vectors)).sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.module.parameters())
    five_steps(encoder, rate=0.05)
    searched(encoder)
    assert encoder.fingerprint != before


def test_damaged_folders(tmp_path: Path) -> None:
    save_static(tmp_path / "m")
    place = next((tmp_path / "m").rglob("model.safetensors"))
    with pytest.raises(ModelError, match="type: static"):
        DenseEncoder.from_pretrained(tmp_path / "m")
    for tensors, message in (
        ({"embedding.weight": torch.zeros(5, 4)}, "do not belong together"),
        ({"table": torch.zeros(5, 4)}, "no table of vectors"),
        ({"embedding.weight": torch.full(TABLE.shape, torch.nan)}, "not finite"),
        ({"embeddings": torch.ones(2, 4), "mapping": torch.full((500,), 2)}, "mapping names rows"),
        (
            {"embeddings": torch.ones(2, 9000), "mapping": torch.zeros(1 << 17).long()},
            "makes a table of 131,072 by 9,000 numbers",
        ),
        ({"embeddings": torch.from_numpy(TABLE), "weights": torch.ones(3)}, "weights are"),
    ):
        save_file(tensors, place)
        with pytest.raises(ModelError, match=message):
            open_encoder(tmp_path / "m")
    place.write_bytes(b"no tensors")
    with pytest.raises(ModelError, match="not readable as safetensors"):
        open_encoder(tmp_path / "m")
    place.unlink()
    with pytest.raises(ModelError, match="missing; weights are read from safetensors only"):
        open_encoder(tmp_path / "m")
    (place.parent / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="not readable as a tokenizer"):
        open_encoder(tmp_path / "m")
    (place.parent / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json: missing"):
        open_encoder(tmp_path / "m")


def test_the_prefixes_it_was_trained_for_are_kept(tmp_path: Path) -> None:
    save_static(tmp_path / "m")
    StaticEncoder.from_pretrained(tmp_path / "m").save_pretrained(tmp_path / "a")
    note_dims(tmp_path / "a", [2, 4])
    assert StaticEncoder.from_pretrained(tmp_path / "a").matryoshka_dims == (4, 2)
    opened = StaticEncoder.from_pretrained(tmp_path / "a", dim=3)
    opened.save_pretrained(tmp_path / "b")
    assert StaticEncoder.from_pretrained(tmp_path / "b").matryoshka_dims == (2,)
    verified = verify_probes(tmp_path / "a", StaticEncoder.from_pretrained(tmp_path / "a"))
    assert verified is not None
    assert not verified.differences
