"""The hyper-head against a plain formula; limits, saving, and folders that do not fit."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from tiny_models import save_tokenizer

from sluice.encoders import DenseEncoder, GaussianEncoder, Hypencoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.q_net import QNetShape, q_net_scores
from sluice.encoders.model_files.registry import kind_of, open_encoder
from sluice.encoders.own.hypencoder.head import HyperHead

TEXTS = ["gold in the river", "", "a sluice is a water search for gold, stone and gold", "x"]
Table = NDArray[np.float64]


def part(
    state: dict[str, Table], name: str, states: Table, divisor: float
) -> Table:  # [outputs, inputs]
    """What one table of the head makes of the states ``[tokens, states]`` of one text."""
    own = {key.removeprefix(f"{name}."): value for key, value in state.items() if name in key}
    keys = states @ own["key.weight"].T + own["key.bias"]
    values = states @ own["value.weight"].T + own["value.bias"]
    logits = own["table"] @ keys.T / math.sqrt(divisor)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    gathered = np.maximum(weights / weights.sum(axis=1, keepdims=True) @ values, 0)
    centred = gathered - gathered.mean(axis=1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    return normed @ own["update.weight"].T + own["update.bias"] + own["base"]


@pytest.mark.parametrize("scaling", ["formula", "repository"])
@pytest.mark.parametrize("hidden", [0, 2])
def test_the_head_is_the_formula(scaling: Any, hidden: int) -> None:
    torch.manual_seed(1)
    dim, length = 4, 5
    head = HyperHead(6, QNetShape(dim, hidden, product=True), scaling)
    with torch.no_grad():  # away from the start, where most is next to nothing
        for value in head.parameters():
            value.copy_(torch.randn(value.shape))
    states, mask = torch.randn(2, length, 6), torch.tensor([[1] * 5, [1, 1, 0, 0, 0]])
    own = torch.randn(2, dim)
    made = head(states, mask, own).detach().double().numpy()
    state = {name: value.double().numpy() for name, value in head.state_dict().items()}
    repository = scaling == "repository"
    for text, count in enumerate((5, 2)):
        seen = states[text, :count].double().numpy()
        flat: list[Table] = []
        for layer in range(hidden):
            flat.append(part(state, f"weights.{layer}", seen, dim).T.ravel())
            flat.append(part(state, f"biases.{layer}", seen, 1 if repository else dim).ravel())
        flat.append(part(state, f"weights.{hidden}", seen, 1 if repository else dim).ravel())
        flat.append(own[text].double().numpy())
        assert np.allclose(made[text], np.concatenate(flat), atol=1e-4)


def test_gradients_of_the_head() -> None:
    """By the states of tokens, and by every weight: differences of the plain formula in float64."""
    torch.manual_seed(3)
    head = HyperHead(3, QNetShape(2, 1))
    with torch.no_grad():
        for each in head.parameters():
            each.copy_(torch.randn(each.shape))
    weights = torch.randn(head.shape.width).double().numpy()
    states = torch.randn(1, 3, 3, requires_grad=True)
    (head(states, torch.ones(1, 3))[0].double() * torch.from_numpy(weights)).sum().backward()
    state = {name: value.double().numpy() for name, value in head.state_dict().items()}
    seen = states[0].detach().double().numpy()

    def value() -> float:
        names = ("weights.0", "biases.0", "weights.1")
        matrix, bias, output = (part(state, name, seen, 2) for name in names)
        return float(np.concatenate([matrix.T.ravel(), bias.ravel(), output.ravel()]) @ weights)

    checked = {name: parameter.grad for name, parameter in head.named_parameters()}
    for name, gradient in [("states", states.grad), *checked.items()]:
        assert gradient is not None
        own = seen if name == "states" else state[name]
        for place in np.ndindex(own.shape):
            before = own[place]
            own[place] = before + 1e-6
            above = value()
            own[place] = before - 1e-6
            difference = (above - value()) / 2e-6
            own[place] = before
            found = gradient.reshape(own.shape)[place].item()
            assert difference == pytest.approx(found, abs=1e-2, rel=1e-3), (name, place)


@pytest.fixture(scope="module")
def encoder(bert: Path) -> Hypencoder:
    return Hypencoder.from_pretrained(bert, hidden_layers=1, projection=8, device="cpu")


def test_it_starts_as_the_bi_encoder_with_product(bert: Path) -> None:
    options: dict[str, Any] = {"pooling": "mean", "normalize": True, "device": "cpu"}
    dense = DenseEncoder.from_pretrained(bert, **options)
    started = Hypencoder.from_pretrained(bert, product=True, hidden_layers=2, **options)
    documents = started.encode_documents(TEXTS)
    assert (documents == dense.encode_documents(TEXTS)).all()
    scores = q_net_scores(started.encode_queries(TEXTS), documents)
    assert np.allclose(scores, dense.encode_queries(TEXTS) @ documents.T, atol=1e-6)


def test_the_q_nets_at_the_start_differ_little(bert: Path) -> None:
    """In their matrices; the biases are drawn as the authors do, and read the query."""
    started = Hypencoder.from_pretrained(bert, hidden_layers=1, device="cpu")
    one, other = started.encode_queries(["gold in the river", "x y z"])
    square = 32 * 32
    deviation = one[:square].std()
    assert deviation == pytest.approx(math.sqrt(2 / 32), rel=0.1)
    assert np.abs(one - other)[:square].max() < 0.1 * deviation
    assert np.abs(one - other)[square : square + 32].max() > 0.1


@pytest.mark.parametrize("side", ["query", "document"])
def test_training_sees_the_vectors_of_encoding(encoder: Hypencoder, side: Any) -> None:
    encode = encoder.encode_queries if side == "query" else encoder.encode_documents
    with torch.no_grad():
        made = encoder.embed(encoder.tokenize(TEXTS, side), side).numpy()
    assert np.allclose(made, encode(TEXTS), atol=1e-4)
    assert made.shape[1] == (encoder.query_dim if side == "query" else encoder.dim)


def test_padding_on_the_left_moves_no_positions(tmp_path: Path) -> None:
    import transformers

    folder, size = tmp_path / "gpt", save_tokenizer(tmp_path / "gpt") + 4
    settings = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    config = transformers.GPT2Config(vocab_size=size, initializer_range=0.2, **settings)
    transformers.GPT2Model(config).save_pretrained(folder)
    encoder = Hypencoder.from_pretrained(folder, hidden_layers=1, pooling="last", device="cpu")
    features = encoder.tokenize(["x"], "query")
    left = {name: torch.nn.functional.pad(each, (5, 0)) for name, each in features.items()}
    with torch.no_grad():
        found, expected = (encoder.embed(each, "query").numpy() for each in (left, features))
    assert np.allclose(found, expected, atol=1e-5)


def test_a_saved_one_knows_its_settings(encoder: Hypencoder, tmp_path: Path) -> None:
    encoder.save_pretrained(tmp_path / "saved")
    assert kind_of(tmp_path / "saved") == "hypencoder"
    opened = open_encoder(tmp_path / "saved", device="cpu")
    assert (opened.q_net_shape, opened.fingerprint) == (encoder.q_net_shape, encoder.fingerprint)
    assert (opened.encode_queries(TEXTS) == encoder.encode_queries(TEXTS)).all()
    again = Hypencoder.from_pretrained(tmp_path / "saved", hidden_layers=1, device="cpu")
    assert again.fingerprint == encoder.fingerprint
    for name, value in (
        ("hidden_layers", 2), ("scaling", "repository"), ("product", True), ("projection", 8),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=rf"{name}: .* was trained with"):
            Hypencoder.from_pretrained(tmp_path / "saved", **{name: value})


def test_others_refuse_its_folder(encoder: Hypencoder, tmp_path: Path) -> None:
    """They would take queries for documents."""
    folder = tmp_path / "saved"
    encoder.save_pretrained(folder)
    with pytest.raises(ModelError, match="a Hypencoder's folder; load it with type: hypencoder"):
        DenseEncoder.from_pretrained(folder)
    with pytest.raises(ModelError, match="a Hypencoder's folder; load it with type: hypencoder"):
        GaussianEncoder.from_pretrained(folder)
    with pytest.raises((ImportError, ValueError, AttributeError, OSError)):
        SentenceTransformer(str(folder), device="cpu")


def test_damaged_folders(encoder: Hypencoder, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    encoder.save_pretrained(folder)
    file, notes = folder / "hyper_head.safetensors", folder / "sluice.json"
    state, facts = load_file(file), json.loads(notes.read_text())

    def broken(message: str) -> None:
        with pytest.raises(ModelError, match=message):
            Hypencoder.from_pretrained(folder)

    save_file({**state, "other": torch.zeros(1)}, file)
    broken(r"other is \[1\], expected no such weight")
    save_file({k: v for k, v in state.items() if k != "weights.0.base"}, file)
    broken("weights.0.base is missing, expected .* for the q-nets that sluice.json describes")
    save_file({**state, "weights.0.base": torch.zeros(8, 9)}, file)
    broken(r"weights.0.base is \[8, 9\], expected \[8, 8\]")
    save_file(state, file)
    large = {**facts["hyper_head"], "hidden_layers": 10**9}
    notes.write_text(json.dumps({**facts, "hyper_head": large}))
    broken("has 3 tables, and sluice.json says hidden_layers: 1000000000")
    for wrong in ({"hidden_layers": -1}, {"scaling": "root"}, {"product": 1}):
        notes.write_text(json.dumps({**facts, "hyper_head": {**facts["hyper_head"], **wrong}}))
        broken("hyper_head is .*; expected hidden_layers")
    notes.write_text(json.dumps({k: v for k, v in facts.items() if k != "hyper_head"}))
    broken("has no hyper_head")
    notes.write_text(json.dumps(facts))
    file.write_bytes(b"no weights")
    broken("cannot be read")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"hidden_layers": -1}, "hidden_layers is -1"),
        ({"scaling": "formular"}, "expected formula or repository; did you mean 'formula'"),
        ({"pooling": "sum"}, "pooling: 'sum'; known"),
    ],
)
def test_settings_that_are_wrong(bert: Path, setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Hypencoder.from_pretrained(bert, **setting)
