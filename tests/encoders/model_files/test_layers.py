"""Vectors of layers, and encoders cut to their first layers and dimensions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import save_model

from sluice.encoders import CrossEncoder, DenseEncoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.adapters import cut_layers, layer_list, layer_outputs
from sluice.encoders.model_files.layout import SIDECAR, read_object, write_sidecar


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("deep") / "bert", "Model", num_hidden_layers=4)


def family(name: str) -> Any:
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": 64, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32,
        "num_hidden_layers": 3, "max_position_embeddings": 40, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    if name == "DistilBert":
        sizes = {"vocab_size": 64, "dim": 16, "n_heads": 2, "n_layers": 3, "hidden_dim": 32}
    if name in ("Llama", "Qwen3"):
        sizes["num_key_value_heads"] = 2
    if name == "T5":
        sizes = {
            "vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 3, "num_heads": 2,
        }  # fmt: skip
    torch.manual_seed(5)
    kind = "EncoderModel" if name == "T5" else "Model"
    made = getattr(transformers, name + kind)(getattr(transformers, name + "Config")(**sizes))
    return made.eval()


FAMILIES = ["Bert", "Roberta", "DistilBert", "MPNet", "ModernBert", "Llama", "Qwen3", "T5"]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_layers_output_is_what_a_model_cut_there_ends_in(name: str) -> None:
    model = family(name)
    ids = torch.randint(3, 60, (2, 7))
    features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        with layer_outputs(model, (1, 2)) as outputs:
            last = model(**features).last_hidden_state
        assert set(outputs) == {1, 2}
        assert torch.equal(model(**features).last_hidden_state, last)
        for layers in (2, 1):
            cut_layers(model, layers)
            assert model.config.num_hidden_layers == layers
            torch.testing.assert_close(model(**features).last_hidden_state, outputs[layers])
    assert not any(module._forward_hooks for module in model.modules())


def test_shared_layers_cannot_be_cut() -> None:
    model = family("Albert")
    assert layer_list(model) is None
    with pytest.raises(ModelError, match="no list of layers"):
        cut_layers(model, 1)
    with pytest.raises(ModelError, match="no list of layers"), layer_outputs(model, (1,)):
        pass


def test_the_last_layers_vectors_are_those_of_embed(deep: Path, texts: list[str]) -> None:
    encoder = DenseEncoder.from_pretrained(deep, projection=8)
    features = encoder.tokenize(texts, "document")
    alone = encoder.embed(features, "document")
    both = encoder.embed_layers(features, "document", (4, 2))
    torch.testing.assert_close(both[:, :8], alone)
    assert both.shape == (len(texts), 16)
    assert encoder.layer_count == 4
    (both[:, 8:].sum()).backward()
    grads = [p.grad for p in encoder.model.encoder.layer[0].parameters()]
    assert all(grad is not None and grad.isfinite().all() for grad in grads)
    assert not any(p.grad.any() for p in encoder.model.encoder.layer[3].parameters())
    assert encoder.network() is not None  # nothing is left behind that stops the packed pass
    with pytest.raises(ConfigError, match="layer 5: the model has layers 1 to 4"):
        encoder.embed_layers(features, "document", (4, 5))


@pytest.mark.parametrize("packed", [True, False])
def test_a_cut_encoder_gives_the_layers_vectors(deep: Path, texts: list[str], packed: bool) -> None:
    whole = DenseEncoder.from_pretrained(deep)
    some = [text for text in texts if text]
    features = whole.tokenize(some, "query")
    with torch.no_grad():
        expected = whole.embed_layers(features, "query", (2,)).numpy()
    cut = DenseEncoder.from_pretrained(deep, layers=2)
    cut.packed = packed
    assert (cut.network() is not None) == packed
    np.testing.assert_allclose(cut.encode_queries(some), expected, atol=2e-6)
    assert cut.fingerprint != whole.fingerprint


def test_a_cross_encoder_of_the_first_layers(deep: Path, tmp_path: Path) -> None:
    cut = CrossEncoder.from_pretrained(deep, layers=1)
    pairs = [("one", "two"), ("one", "one of many")]
    cut.save_pretrained(tmp_path / "cut")
    again = CrossEncoder.from_pretrained(tmp_path / "cut")
    assert len(again.model.bert.encoder.layer) == 1
    np.testing.assert_allclose(again.score(pairs), cut.score(pairs), atol=1e-6)
    with pytest.raises(ConfigError, match="layers: 5; the model has 4"):
        CrossEncoder.from_pretrained(deep, layers=5)


@pytest.mark.thorough
@pytest.mark.parametrize("projection", [None, 24])
@pytest.mark.parametrize("normalize", [True, False])
def test_short_vectors_are_prefixes_and_survive_saving(
    deep: Path, texts: list[str], tmp_path: Path, projection: int | None, normalize: bool
) -> None:
    from sentence_transformers import SentenceTransformer

    base = tmp_path / "base"
    DenseEncoder.from_pretrained(deep, projection=projection, normalize=normalize).save_pretrained(
        base
    )
    whole = DenseEncoder.from_pretrained(base)
    short = DenseEncoder.from_pretrained(base, layers=3, dim=12)
    full = DenseEncoder.from_pretrained(base, layers=3).encode_documents(texts)
    expected = full[:, :12]
    if normalize:
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    found = short.encode_documents(texts)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert short.dim == 12
    assert short.fingerprint != whole.fingerprint
    again = tmp_path / "short"
    short.save_pretrained(again)
    loaded = DenseEncoder.from_pretrained(again)
    assert loaded.fingerprint == short.fingerprint
    assert (loaded.layer_count, loaded.dim) == (3, 12)
    np.testing.assert_array_equal(loaded.encode_documents(texts), found)
    theirs = SentenceTransformer(str(again), device="cpu").encode(texts)
    np.testing.assert_allclose(theirs, found, atol=1e-5)
    shorter = DenseEncoder.from_pretrained(again, dim=5)
    assert shorter.dim == 5
    with pytest.raises(ConfigError, match="dim: 13; the model's vectors have 12"):
        DenseEncoder.from_pretrained(again, dim=13)


def test_an_uncut_encoder_is_what_it_was(deep: Path, texts: list[str]) -> None:
    plain = DenseEncoder.from_pretrained(deep)
    same = DenseEncoder.from_pretrained(deep, layers=4, dim=32)
    assert same.fingerprint == plain.fingerprint
    assert "dim" not in plain.settings()


def test_trained_prefixes_are_kept_with_the_model(deep: Path, tmp_path: Path) -> None:
    encoder = DenseEncoder.from_pretrained(deep)
    assert encoder.matryoshka_dims == ()
    encoder.save_pretrained(tmp_path / "a")
    noted = read_object(tmp_path / "a" / SIDECAR)
    write_sidecar(tmp_path / "a", {**noted, "matryoshka_dims": [32, 16, 8]})
    loaded = DenseEncoder.from_pretrained(tmp_path / "a", dim=16)
    assert loaded.matryoshka_dims == (32, 16, 8)
    loaded.save_pretrained(tmp_path / "b")
    assert read_object(tmp_path / "b" / SIDECAR)["matryoshka_dims"] == [16, 8]
    write_sidecar(tmp_path / "a", {**noted, "matryoshka_dims": "all"})
    with pytest.raises(ModelError, match="matryoshka_dims is 'all'"):
        DenseEncoder.from_pretrained(tmp_path / "a")


@pytest.mark.parametrize("layers", [0, 5, True])
def test_layers_the_model_does_not_have(deep: Path, layers: int) -> None:
    with pytest.raises(ConfigError, match=r"layers: .*; the model has 4, expected 1 to 4"):
        DenseEncoder.from_pretrained(deep, layers=layers)


def test_layers_and_an_exported_graph_do_not_go_together(deep: Path) -> None:
    with pytest.raises(ConfigError, match="an exported graph always runs all of them"):
        DenseEncoder.from_pretrained(deep, layers=2, backend="onnx")


def test_a_noted_dim_that_is_none_is_refused(deep: Path, tmp_path: Path) -> None:
    DenseEncoder.from_pretrained(deep, dim=8).save_pretrained(tmp_path / "a")
    noted = read_object(tmp_path / "a" / SIDECAR)
    write_sidecar(tmp_path / "a", {**noted, "dim": "8"})
    with pytest.raises(ModelError, match=r"sluice\.json: dim is '8'"):
        DenseEncoder.from_pretrained(tmp_path / "a")
