"""Weights of 8 and 4 bits: codes by a formula, their products, and what trains beside them."""

import copy
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import FAMILIES, bare_decoder
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from tiny_architectures import save_architecture
from tuned_encoders import TEXTS, move, named, outputs

from sluice.encoders import CrossEncoder, DenseEncoder
from sluice.encoders.backends.export import export_onnx
from sluice.encoders.dense.experts.encoder import ExpertEncoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.probes import verify_probes
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.model_files.weights import quantised
from sluice.encoders.model_files.weights.quantised import (
    Codes,
    QuantisedEmbedding,
    QuantisedLinear,
    bytes_of,
    quantise,
    weights_of,
)
from sluice.encoders.rerankers.local_language_model import LocalLanguageModel
from sluice.encoders.splade.concepts.encoder import ConceptEncoder
from sluice.encoders.tuning.tune import merge, tune

BITS = [("int8", 8), ("int4", 4)]
TUNINGS = [
    {"type": "lora", "rank": 2}, {"type": "ia3"}, {"type": "bitfit"}, {"type": "ln_tuning"},
    {"type": "adapter"}, {"type": "iaa", "variant": "S"}, {"type": "prefix", "tokens": 2},
    {"type": "gated_prefix", "tokens": 2},
]  # fmt: skip


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_architecture(tmp_path_factory.mktemp("quantised") / "bert", "Bert", "dense")


def matrix(rows: int, width: int) -> torch.Tensor:
    torch.manual_seed(rows)
    drawn = torch.randn(rows, width) * torch.logspace(-3, 3, rows)[:, None]
    drawn[1] = 0.0
    drawn[2] = 0.25  # all alike
    return drawn


def bfloat16(value: float) -> float:
    """Round to 8 binary digits, halves to even, as the number's bits say."""
    bits = int(np.float32(value).view(np.uint32))
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(np.uint32(rounded).view(np.float32))


def coded(row: np.ndarray, bits: int) -> list[float]:
    """The weights of a row by the formula, one after another."""
    if bits == 8:
        scale = bfloat16(np.float32(max(abs(row))) / np.float32(127))
        return [round(float(np.float32(w) / np.float32(scale or 1))) * scale for w in row]
    weights: list[float] = []
    for start in range(0, len(row), 32):
        group = [*row[start : start + 32], *[0.0] * (start + 32 - len(row))]
        lowest = bfloat16(min(group))
        scale = bfloat16(np.float32(np.float32(max(group)) - np.float32(lowest)) / np.float32(15))
        for weight in group:
            steps = np.float32(np.float32(weight) - np.float32(lowest)) / np.float32(scale or 1)
            weights.append(min(max(round(float(steps)), 0), 15) * scale + lowest)
    return weights[: len(row)]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", [(5, 64), (7, 50), (3, 3)])
def test_codes_by_their_formula(bits: int, shape: tuple[int, int]) -> None:
    weights = matrix(*shape)
    codes = Codes(weights, bits)
    expected = [coded(row, bits) for row in weights.numpy()]
    np.testing.assert_allclose(codes.weights().numpy(), expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(codes.weights(1, 3), codes.weights()[1:3])
    width = shape[1] if bits == 8 else (shape[1] + 31) // 32 * 16
    assert codes.codes.shape == (shape[0], width)
    spread = weights.abs().amax(1) / 127 if bits == 8 else weights.amax(1) - weights.amin(1)
    step = spread if bits == 8 else spread / 15
    wrong = (codes.weights() - weights).abs().amax(1)
    assert bool((wrong <= 0.5 * step + weights.abs().amax(1) / 250).all())


@pytest.mark.parametrize("bits", [8, 4])
def test_codes_of_codes_are_the_same(bits: int) -> None:
    torch.manual_seed(3)
    codes = Codes(torch.randn(400, 96) * torch.rand(400, 1), bits)
    again = Codes(codes.weights(), bits)
    assert torch.equal(again.codes, codes.codes)
    assert torch.equal(again.scales, codes.scales)
    assert torch.equal(again.weights(), codes.weights())


@pytest.mark.parametrize("bits", [8, 4])
def test_a_product_and_its_gradient(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several blocks of rows; in float64 by the weights that the codes stand for."""
    monkeypatch.setattr(quantised, "BLOCK", 64)
    torch.manual_seed(1)
    layer = QuantisedLinear(Codes(torch.randn(150, 40), bits), torch.nn.Parameter(torch.ones(150)))
    x = torch.randn(2, 3, 40, requires_grad=True)
    above = torch.randn(2, 3, 150)
    out = layer(x)
    out.backward(above)
    exact = layer.weight.double()
    np.testing.assert_allclose(out.detach(), (x.detach().double() @ exact.T + 1).numpy(), atol=1e-4)
    assert x.grad is not None
    np.testing.assert_allclose(x.grad, (above.double() @ exact).numpy(), atol=1e-4)
    assert layer.bias.grad is not None
    np.testing.assert_allclose(layer.bias.grad, above.sum((0, 1)), atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        half = layer(x)
    assert half.dtype is torch.bfloat16
    difference = (half.float() - out).detach().norm() / out.detach().norm()
    assert float(difference) < 0.02


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "weights", "bits"),
    [
        ("BERT", *BITS[0]), ("NomicBERT", *BITS[1]), ("T5 encoder", *BITS[0]), ("Qwen3", *BITS[1]),
        ("Gemma 3", *BITS[0]),
    ],
)  # fmt: skip
def test_a_family_in_fewer_bits(
    family: str, weights: Any, bits: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = FAMILIES[family](tmp_path / "m")
    whole = DenseEncoder.from_pretrained(folder, device="cpu")
    with caplog.at_level(logging.INFO, "sluice"):
        ours = DenseEncoder.from_pretrained(folder, weights=weights, device="cpu")
    assert f"weights of {weights}" in caplog.text
    assert weights_of(ours.module) == weights
    layers = [m for m in ours.model.modules() if isinstance(m, QuantisedLinear)]
    plain = [m for m in whole.model.modules() if type(m) is torch.nn.Linear]
    assert len(layers) == len(plain)
    assert {layer.matrix.bits for layer in layers} == {bits}
    assert isinstance(ours.model.get_input_embeddings(), QuantisedEmbedding)
    assert bytes_of(ours.module) < 0.6 * bytes_of(whole.module)  # tiny: norms and biases weigh
    vectors, exact = ours.encode_documents(TEXTS), whole.encode_documents(TEXTS)
    cosines = (vectors * exact).sum(1) / np.linalg.norm(vectors, axis=1)
    assert (cosines / np.linalg.norm(exact, axis=1)).min() > (0.99 if bits == 8 else 0.8)
    assert ours.fingerprint != whole.fingerprint

    ours.packed = False  # the model's own pass, which training takes too
    np.testing.assert_allclose(ours.encode_documents(TEXTS), vectors, atol=1e-5)
    ours.packed = True
    ours.save_pretrained(tmp_path / "saved")
    again = open_encoder(tmp_path / "saved", device="cpu")
    assert weights_of(again.module) == weights
    np.testing.assert_array_equal(again.encode_documents(TEXTS), vectors)
    verified = verify_probes(tmp_path / "saved", again)
    assert verified is not None
    assert not verified.differences
    read = DenseEncoder.from_pretrained(tmp_path / "saved", weights="float32", device="cpu")
    assert weights_of(read.module) == "float32"
    assert ours.fingerprint == again.fingerprint == read.fingerprint
    np.testing.assert_allclose(read.encode_documents(TEXTS), vectors, atol=1e-5)
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode_document(TEXTS)
    theirs /= np.linalg.norm(theirs, axis=1, keepdims=True) if ours.normalize else 1.0
    np.testing.assert_allclose(theirs, vectors, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "half"), [("Gemma 3", torch.bfloat16), ("Qwen3", torch.float16)]
)
def test_files_of_16_bits_are_read_as_such(
    family: str, half: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The codes are those of the same numbers in 32 bits, and so are the vectors."""
    folder = FAMILIES[family](tmp_path / "m")
    state = {
        name: value.to(half) for name, value in load_file(folder / "model.safetensors").items()
    }
    whole = {name: value.float() for name, value in state.items()}
    vectors, types = [], []

    def noted(model: Any, weights: Any) -> None:
        types.append(next(model.parameters()).dtype)
        quantise(model, weights)

    monkeypatch.setattr("sluice.encoders.model_files.loading.quantise", noted)
    for values in (state, whole):
        save_file(values, folder / "model.safetensors", {"format": "pt"})
        encoder = DenseEncoder.from_pretrained(folder, weights="int8", device="cpu")
        assert {p.dtype for p in encoder.module.parameters()} == {torch.float32}
        vectors.append(encoder.encode_documents(TEXTS))
    assert types == [half, torch.float32]
    np.testing.assert_array_equal(*vectors)


def test_bfloat16_arithmetic_and_copies(bert: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert, weights="int8", device="cpu")
    vectors = encoder.encode_documents(TEXTS)
    np.testing.assert_array_equal(copy.deepcopy(encoder).encode_documents(TEXTS), vectors)
    encoder.dtype = torch.bfloat16
    assert (encoder.encode_documents(TEXTS) * vectors).sum(1).min() > 0.99


@pytest.mark.parametrize(("weights", "bits"), BITS)
def test_a_cross_encoder(weights: Any, bits: int, tmp_path: Path) -> None:
    folder = save_architecture(tmp_path / "m", "Bert", "cross_encoder")
    whole = CrossEncoder.from_pretrained(folder, device="cpu")
    ours = CrossEncoder.from_pretrained(folder, weights=weights, device="cpu")
    assert type(ours.model.classifier) is torch.nn.Linear, "the head is read as it is"
    assert np.corrcoef(outputs(ours), outputs(whole))[0, 1] > (0.99 if bits == 8 else 0.8)
    ours.save_pretrained(tmp_path / "saved")
    again = CrossEncoder.from_pretrained(tmp_path / "saved", device="cpu")
    assert weights_of(again.module) == weights
    np.testing.assert_array_equal(outputs(again), outputs(ours))
    read = CrossEncoder.from_pretrained(tmp_path / "saved", weights="float32", device="cpu")
    np.testing.assert_allclose(outputs(read), outputs(ours), atol=1e-5)


def test_a_language_model_has_the_codes_of_tied_words_once(tmp_path: Path) -> None:
    folder = bare_decoder(tmp_path / "m")
    whole = LocalLanguageModel.from_pretrained(folder, device="cpu")
    ours = LocalLanguageModel.from_pretrained(folder, weights="int4", device="cpu")
    assert ours.model.lm_head.matrix is ours.model.model.embed_tokens.matrix
    assert ours.model.lm_head.matrix.bits == 8
    by_hand = copy.deepcopy(whole.model)
    for name, layer in ours.model.named_modules():
        if isinstance(layer, QuantisedLinear | QuantisedEmbedding):
            by_hand.get_submodule(name).weight.data = layer.weight
    ids = torch.tensor([[5, 9, 7, 30]])
    with torch.no_grad():
        expected, logits = by_hand(ids).logits, ours.model(ids).logits
    np.testing.assert_allclose(logits, expected, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("settings", TUNINGS, ids=named)
def test_what_trains_beside_codes(settings: dict[str, Any], bert: Path, tmp_path: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert, weights="int8", device="cpu")
    before = {k: v.clone() for k, v in encoder.module.state_dict().items() if "matrix" in k}
    tuned = tune(encoder, settings)
    whole = tune(DenseEncoder.from_pretrained(bert, device="cpu"), settings)
    assert (tuned.trainable, tuned.total) == (whole.trainable, whole.total)
    batch = encoder.embed(encoder.tokenize(TEXTS, "document"), "document")
    (batch @ torch.ones(batch.shape[1])).sum().backward()
    assert any(bool(p.grad.any()) for p in encoder.module.parameters() if p.grad is not None)
    move(encoder)
    vectors = encoder.encode_documents(TEXTS)
    for name, value in encoder.module.state_dict().items():
        if "matrix" in name:
            assert torch.equal(value, before[name.replace(".base_layer", "")])
    encoder.save_pretrained(tmp_path / "saved")
    again = DenseEncoder.from_pretrained(tmp_path / "saved", device="cpu")
    assert weights_of(again.module) == (
        "float32" if settings["type"] in ("lora", "ia3") else "int8"
    )
    np.testing.assert_allclose(again.encode_documents(TEXTS), vectors, atol=1e-5)
    merge(encoder)
    np.testing.assert_allclose(encoder.encode_documents(TEXTS), vectors, atol=1e-5)
    encoder.save_pretrained(tmp_path / "merged")
    again = DenseEncoder.from_pretrained(tmp_path / "merged", device="cpu")
    np.testing.assert_allclose(again.encode_documents(TEXTS), vectors, atol=1e-5)


def test_types_without_the_setting_read_a_coded_folder_as_numbers(
    bert: Path, tmp_path: Path
) -> None:
    DenseEncoder.from_pretrained(bert, weights="int8", device="cpu").save_pretrained(tmp_path / "m")
    experts = ExpertEncoder.from_pretrained(tmp_path / "m", experts=["a", "b"], device="cpu")
    assert weights_of(experts.module) == "float32"
    (tmp_path / "words.txt").write_text("river\ngold\n")
    concepts = ConceptEncoder.from_pretrained(
        tmp_path / "m", vocabulary=str(tmp_path / "words.txt"), device="cpu"
    )
    assert weights_of(concepts.module) == "float32"


def test_what_is_refused(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="weights: 'int3'; expected float32, int8, int4"):
        DenseEncoder.from_pretrained(bert, weights="int3")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="int8: an exported graph has weights of its own; use"):
        DenseEncoder.from_pretrained(bert, weights="int8", backend="onnx")
    encoder = DenseEncoder.from_pretrained(bert, weights="int8", device="cpu")
    with pytest.raises(ConfigError, match=r"made of weights of 32 bits; open the model with"):
        export_onnx(encoder, tmp_path / "graph")
    encoder.save_pretrained(tmp_path / "m")
    file = tmp_path / "m" / "sluice.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "weights": ["int8"]}))
    with pytest.raises(ModelError, match=r"sluice.json: weights: \['int8'\]; expected float32"):
        DenseEncoder.from_pretrained(tmp_path / "m")
    import transformers

    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9, n_positions=8)
    with pytest.raises(ModelError, match="GPT2Model has no linear layers in blocks"):
        quantise(transformers.GPT2Model(config), "int8")
