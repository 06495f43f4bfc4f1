"""Projections of several layers: float64 formulas, sentence-transformers, saving, cutting."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sluice.encoders.dense.encoder import DenseEncoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.transformer.projection import Projection, cut_vectors, draw_projection

DEEP: dict[str, Any] = {"dim": 8, "layers": 2, "hidden": 24, "residual": True}
SPECS: list[dict[str, Any]] = [
    DEEP,
    {"dim": 32, "layers": 3, "residual": True, "activation": "tanh"},
    {"dim": 8, "layers": 2, "activation": "relu"},
    {"dim": 32, "residual": True},
]


def shaken(projection: Projection) -> Projection:
    """The projection with other weights, since residual layers begin at 0."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in projection.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return projection


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


PLAIN = {
    "GELU": gelu, "Tanh": np.tanh, "ReLU": lambda x: np.maximum(x, 0), "Identity": lambda x: x,
}  # fmt: skip


@pytest.mark.parametrize("spec", SPECS)
def test_layers_by_the_formula(spec: dict[str, Any]) -> None:
    projection = shaken(draw_projection(32, spec, 13)).double()
    vectors = np.random.default_rng(0).normal(size=(5, 32))
    expected = vectors
    for layer in projection.chain:
        weights = {name: value.numpy() for name, value in layer.own_state().items()}
        out = expected @ weights["linear.weight"].T + weights["linear.bias"]
        out = PLAIN[layer.activation_name](out)
        if layer.residual is not None:
            skip = weights.get("residual.weight")
            out = out + (expected if skip is None else expected @ skip.T)
        expected = out
    found = projection(torch.from_numpy(vectors)).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("normalize", [True, False])
def test_sentence_transformers_reads_the_folder(
    spec: dict[str, Any], normalize: bool, bert: Path, texts: list[str], tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    ours = DenseEncoder.from_pretrained(bert, projection=spec, normalize=normalize)
    assert ours.projection is not None
    shaken(ours.projection)
    expected = ours.encode_documents(texts)
    ours.save_pretrained(tmp_path / "m")
    theirs = SentenceTransformer(str(tmp_path / "m"), device="cpu")
    np.testing.assert_allclose(theirs.encode(texts), expected, atol=2e-5)
    again = DenseEncoder.from_pretrained(tmp_path / "m")
    np.testing.assert_allclose(again.encode_documents(texts), expected, atol=1e-6)
    assert again.fingerprint == ours.fingerprint
    theirs.save_pretrained(str(tmp_path / "back"))
    back = DenseEncoder.from_pretrained(tmp_path / "back")
    np.testing.assert_allclose(back.encode_documents(texts), expected, atol=1e-6)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_residual_layers_begin_as_the_plain_encoder(
    layers: int, bert: Path, texts: list[str]
) -> None:
    plain = DenseEncoder.from_pretrained(bert)
    spec = {"dim": plain.dim, "layers": layers, "residual": True}
    started = DenseEncoder.from_pretrained(bert, projection=spec)
    np.testing.assert_allclose(
        started.encode_documents(texts), plain.encode_documents(texts), atol=1e-6
    )
    assert started.fingerprint != plain.fingerprint
    vectors = started.embed(started.tokenize(texts, "document"), "document")
    (vectors * torch.randn_like(vectors)).sum().backward()
    assert started.projection is not None
    for layer in started.projection.chain:  # every layer can leave its start
        gradient = layer.linear.weight.grad
        assert gradient is not None
        assert float(gradient.abs().max()) > 1e-6


def test_a_residual_setting_changes_the_fingerprint(bert: Path) -> None:
    one = DenseEncoder.from_pretrained(bert, projection={"dim": 32, "layers": 1, "residual": True})
    other = DenseEncoder.from_pretrained(bert, projection=32)
    assert one.projection is not None
    assert other.projection is not None
    other.projection.load_state_dict(one.projection.state_dict())
    assert one.fingerprint != other.fingerprint
    assert other.settings()["activation"] == "Identity"  # as ever


def test_a_residual_layer_cut_to_as_many_dimensions_as_it_reads() -> None:
    layer = shaken(draw_projection(6, {"dim": 9, "layers": 2, "hidden": 5, "residual": True}, 3))
    vectors = torch.from_numpy(np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32))
    for dim in (4, 5, 6):  # the last layer reads 5 dimensions
        cut = cut_vectors(layer, 6, dim, {}).projection
        assert cut is not None
        torch.testing.assert_close(cut(vectors), layer(vectors)[:, :dim])


@pytest.mark.parametrize("spec", [DEEP, {"dim": 32, "layers": 2, "residual": True}])
def test_the_first_dimensions_of_a_deep_projection(
    spec: dict[str, Any], bert: Path, texts: list[str], tmp_path: Path
) -> None:
    whole = DenseEncoder.from_pretrained(bert, projection=spec, normalize=False)
    assert whole.projection is not None
    shaken(whole.projection)
    whole.save_pretrained(tmp_path / "m")
    cut = DenseEncoder.from_pretrained(tmp_path / "m", dim=6)
    expected = whole.encode_documents(texts)[:, :6]
    np.testing.assert_allclose(cut.encode_documents(texts), expected, atol=1e-5)
    cut.save_pretrained(tmp_path / "cut")
    again = DenseEncoder.from_pretrained(tmp_path / "cut")
    np.testing.assert_allclose(again.encode_documents(texts), expected, atol=1e-5)


def test_layers_that_do_not_fit_are_refused(bert: Path, tmp_path: Path) -> None:
    DenseEncoder.from_pretrained(bert, projection=DEEP).save_pretrained(tmp_path / "m")
    config = tmp_path / "m" / "3_Dense" / "config.json"
    facts = json.loads(config.read_text())
    config.write_text(json.dumps({**facts, "in_features": 23}))
    with pytest.raises(ModelError, match=r"3_Dense.*expected 24"):
        DenseEncoder.from_pretrained(tmp_path / "m")
    config.write_text(json.dumps({**facts, "use_residual": False}))
    with pytest.raises(ModelError, match=r"3_Dense.*does not fit its config\.json"):
        DenseEncoder.from_pretrained(tmp_path / "m")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"layers": 2}, r"projection\.dim"),
        ({"dim": 8, "layer": 2}, "did you mean 'layers'"),
        ({"dim": 8, "layers": 0}, r"projection\.layers"),
        ({"dim": 8, "layers": 2, "hidden": 0}, r"projection\.hidden"),
        ({"dim": 8, "hidden": 8}, "is between layers"),
        ({"dim": 8, "activation": "tanh"}, "is between layers"),
        ({"dim": 8, "layers": 2, "activation": "swish"}, "gelu, relu, tanh"),
        ({"dim": 8, "layers": 2, "activation": "relu", "residual": True}, "flat at 0"),
        ({"dim": 8, "residual": True}, "linear map with it as without"),
        ({"dim": 8, "layers": 2, "residual": "yes"}, "true or false"),
        ({"dim": 8, "layers": 2, "activation": ["gelu"]}, "known: gelu, relu, tanh"),
    ],
)
def test_settings_that_cannot_work(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        draw_projection(32, spec, 13)
