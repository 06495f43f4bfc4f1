"""The methods of tuning: their formulas, their shares of the parameters, their settings."""

import copy
import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tuned_encoders import embedded, move, named

from sluice.encoders import DenseEncoder, SpladeEncoder
from sluice.encoders.foundation.errors import ConfigError, MissingPackageError, ModelError
from sluice.encoders.tuning.adapters import Bottleneck, places_of
from sluice.encoders.tuning.prefix import GatedPairs
from sluice.encoders.tuning.tune import merge, tune


def opened(folder: Path) -> DenseEncoder:
    return DenseEncoder.from_pretrained(folder, device="cpu")


def minilm() -> Any:
    """An encoder of MiniLM's shape, on no device."""
    from transformers import BertConfig

    config = BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    return on_no_device(config)


def bert_base() -> Any:
    from transformers import BertConfig

    return on_no_device(BertConfig())


def on_no_device(config: Any) -> Any:
    from transformers import BertModel

    with torch.device("meta"):
        model = BertModel(config, add_pooling_layer=False)
    return SimpleNamespace(kind="dense", model=model, module=model)


@pytest.mark.parametrize(
    ("settings", "trained"),
    [
        ({"type": "lora", "targets": "attention"}, 6 * 4 * 4 * 2 * 384),
        ({"type": "lora"}, 6 * 4 * (4 * 2 * 384 + 2 * (384 + 1536))),
        ({"type": "adapter"}, 6 * 2 * (2 * 24 * 384 + 24 + 384)),
        ({"type": "adapter", "places": ["mlp"]}, 6 * (2 * 24 * 384 + 24 + 384)),
        ({"type": "prefix"}, 6 * 2 * 20 * 384),
        ({"type": "gated_prefix"}, 6 * (2 * 20 * 384 + 12)),
        ({"type": "iaa"}, 6 * 3 * (2 * 6 * 384 + 6 + 384)),
        ({"type": "iaa", "variant": "G", "inside": False}, 6 * (2 * 6 * 384 + 6 + 384 + 1)),
        ({"type": "ia3"}, 6 * (2 * 384 + 1536)),
        ({"type": "bitfit"}, 6 * (4 * 384 + 1536 + 384 + 2 * 384) + 384),
        ({"type": "ln_tuning"}, 13 * 2 * 384),
    ],
    ids=lambda value: named(value) if isinstance(value, dict) else "",
)
def test_less_than_one_percent_of_a_minilm_is_trained_and_said(
    settings: dict[str, Any], trained: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "sluice"):
        tuned = tune(minilm(), settings)
    assert tuned.trainable == trained
    assert 0 < tuned.share < 0.01
    assert f"trains {trained:,} of {tuned.total:,} parameters" in caplog.text


def test_the_default_lora_trains_under_one_percent() -> None:
    assert 0.007 < tune(minilm(), {"type": "lora"}).share < 0.008
    assert 0.005 < tune(bert_base(), {"type": "lora"}).share < 0.007
    assert 0.014 < tune(minilm(), {"type": "lora", "rank": 8}).share < 0.015


def test_connected_adapters_train_under_one_percent() -> None:
    assert tune(minilm(), {"type": "iaa"}).share < 0.005
    assert 0.005 < tune(bert_base(), {"type": "iaa", "variant": "G"}).share < 0.01


@pytest.mark.parametrize(("settings", "scale"), [
    ({}, 2.0), ({"rank": 8}, 2.0), ({"rank": 8, "alpha": 4}, 0.5),
])  # fmt: skip
def test_alpha_is_twice_the_rank_unless_told(
    settings: dict[str, Any], scale: float, bert: Path
) -> None:
    encoder = opened(bert)
    tune(encoder, {"type": "lora", **settings})
    layer = encoder.model.encoder.layer[0].attention.self.query
    assert layer.scaling["default"] == scale


def test_lora_is_its_formula(bert: Path) -> None:
    encoder = opened(bert)
    layer = encoder.model.encoder.layer[1].attention.self
    weight = layer.key.weight.detach().clone()
    tune(encoder, {"type": "lora", "rank": 3, "alpha": 6, "targets": ["key"]})
    down, up = layer.key.lora_A["default"].weight, layer.key.lora_B["default"].weight
    assert down.shape == (3, 32)
    assert not up.any()
    move(encoder)
    wanted = weight + 6 / 3 * up.detach() @ down.detach()
    merge(encoder)
    assert torch.allclose(layer.key.weight, wanted, atol=1e-6)


def test_a_bottleneck_is_its_formula() -> None:
    torch.manual_seed(1)
    part = Bottleneck(6, 2).double()
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    assert torch.equal(part(x), x)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.normal_()
    inner = x @ part.down.weight.T + part.down.bias
    inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
    wanted = x + inner @ part.up.weight.T + part.up.bias
    assert torch.allclose(part(x), wanted, rtol=0, atol=1e-10)
    ours, theirs = (torch.autograd.grad(y.sum(), x, retain_graph=True) for y in (part(x), wanted))
    assert torch.allclose(ours[0], theirs[0], rtol=0, atol=1e-10)


def test_a_gated_prefix_is_its_formula() -> None:
    torch.manual_seed(1)
    part = GatedPairs(5, heads=2, gates=4, size=3).double()
    queries = torch.randn(2, 4, 7, 3, dtype=torch.float64, requires_grad=True)
    assert not part(queries, 0.5).any()
    with torch.no_grad():
        part.gates.copy_(torch.tensor([0.1, -0.2, 0.3, 2.0]))
    wanted = torch.zeros(2, 7, 4, 3, dtype=torch.float64)
    for head in range(4):
        keys, values = part.keys[head // 2], part.values[head // 2]
        attention = torch.softmax(0.5 * queries[:, head] @ keys.T, dim=-1)
        wanted[:, :, head] = torch.tanh(part.gates[head]) * attention @ values
    assert torch.allclose(part(queries, 0.5), wanted, rtol=0, atol=1e-10)
    for tensor in (queries, part.keys, part.values, part.gates):
        ours, theirs = (
            torch.autograd.grad((y * y).sum(), tensor, retain_graph=True)[0]
            for y in (part(queries, 0.5), wanted)
        )
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["prefix", "gated_prefix"])
def test_a_prefix_is_the_same_under_both_attentions(bert: Path, kind: str) -> None:
    encoder = opened(bert)
    fused = copy.deepcopy(encoder)
    encoder.model.set_attn_implementation("eager")
    for each in (encoder, fused):
        tune(each, {"type": kind, "tokens": 4})
        move(each)
    assert encoder.model.config._attn_implementation.endswith("eager")
    assert np.abs(embedded(encoder) - embedded(fused)).max() < 1e-5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {},
            "tuning: needs 'type', one of lora and 8 more: sluice config list --all",
        ),
        ({"type": "lorra"}, "did you mean 'lora'"),
        ({"type": "lora", "rnak": 4}, "tuning.rnak: unknown key; lora takes .*did you mean 'rank'"),
        ({"type": "lora", "alpha": math.inf}, "lora.alpha"),
        ({"type": "lora", "targets": "attentoin"}, "'attentoin'.*did you mean 'attention'"),
        ({"type": "lora", "targets": ["qurey"]}, "did you mean 'query'"),
        ({"type": "lora", "targets": []}, "lora.targets: \\[\\]"),
        ({"type": "adapter", "places": ["mpl"]}, "adapter.places: 'mpl'.*did you mean 'mlp'"),
        ({"type": "adapter", "places": []}, "adapter.places: \\[\\]"),
        ({"type": "iaa", "variant": "s"}, "iaa.variant: 's', expected S, P, G; did you mean 'S'"),
        ({"type": "iaa", "inside": 1}, r"tuning\.inside: 1; expected true or false"),
    ],
)
def test_settings_that_do_not_fit_are_named(
    settings: dict[str, Any], message: str, bert: Path
) -> None:
    encoder = opened(bert)
    names = list(encoder.module.state_dict())
    with pytest.raises(ConfigError, match=message):
        tune(encoder, settings)
    assert list(encoder.module.state_dict()) == names
    assert all(parameter.requires_grad for parameter in encoder.module.parameters())


def test_missing_peft_is_said_before_anything_changes(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    encoder = opened(bert)
    for kind in ("lora", "ia3"):
        with pytest.raises(MissingPackageError, match=r"sluice-ir\[peft\]"):
            tune(encoder, {"type": kind})
    for kind in ("adapter", "bitfit"):
        tune(opened(bert), {"type": kind})


def test_damaged_adapters_are_model_errors(bert: Path, tmp_path: Path) -> None:
    encoder = opened(bert)
    tune(encoder, {"type": "adapter"})
    encoder.save_pretrained(tmp_path / "m")
    place = tmp_path / "m" / "adapter"
    settings = (place / "adapter.json").read_text()
    for text, message in (
        ("{}", "no 'tuning'"),
        (settings.replace('"adapter"', '"bottle"'), "unknown type 'bottle'"),
        (settings.replace('"adapter"', '"os:getcwd"'), "never runs code that it names"),
        (settings.replace('"adapter"', '"adapter", "reduction": 4'), "is \\(2,\\), expected"),
    ):
        (place / "adapter.json").write_text(text)
        with pytest.raises(ModelError, match=message):
            DenseEncoder.from_pretrained(tmp_path / "m", device="cpu")
    (place / "adapter.json").write_text(settings)
    (place / "adapter.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="adapter"):
        DenseEncoder.from_pretrained(tmp_path / "m", device="cpu")


def test_places_are_found_by_structure(masked_bert: Path) -> None:
    places = places_of(SpladeEncoder.from_pretrained(masked_bert, device="cpu").model)
    assert places.attended == [f"bert.encoder.layer.{n}.attention.output.dense" for n in range(2)]
    assert places.outer == [f"bert.encoder.layer.{n}.output.dense" for n in range(2)]
    assert places.attending == [f"bert.encoder.layer.{n}.attention.self" for n in range(2)]
    assert len(places.linears) == 12
    assert len(places.attention) == 8
