"""Experts: copies of the dense encoder at the start, each trained by its own texts; refusals."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.functional import gelu

from sluice.encoders import DenseEncoder, ExpertEncoder
from sluice.encoders.backends.export import export_onnx
from sluice.encoders.dense.experts.mixture import Expert, ExpertLinear, Gate, expert_layers
from sluice.encoders.encoder import encoder_of
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.transformer.text_encoder import TextEncoder
from sluice.encoders.tuning.tune import tune
from sluice.training import fit
from sluice.training.batches.collator import BiEncoderCollator
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.protocol import Example, Text

NAMES = ["gold", "water"]
TRAINER = {
    "max_steps": 4, "per_device_train_batch_size": 2, "learning_rate": 0.1, "save_steps": 2,
    "save_total_limit": 4, "optim": "sgd",
}  # fmt: skip
OUTER = "encoder.layer.1.output.dense"


def started(model: Path, experts: Any = NAMES, **options: Any) -> ExpertEncoder:
    encoder = ExpertEncoder.from_pretrained(model, experts=experts, **options)
    assert isinstance(encoder, ExpertEncoder)
    return encoder


def trained(model: Path, experts: Any = NAMES, **options: Any) -> ExpertEncoder:
    """An encoder whose experts differ."""
    encoder = started(model, experts, **options)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in encoder.expert_parameters().values():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
    return encoder


def marked(encoder: ExpertEncoder, texts: list[str], datasets: list[str]) -> dict[str, Any]:
    """Features of texts, each of a dataset of its own."""
    features = encoder.tokenize(texts, "document")
    numbers = [[encoder.mixture.names.index(name)] for name in datasets]
    return {**features, "expert": torch.tensor(numbers)}


@pytest.mark.parametrize("packed", [True, False])
def test_named_experts_start_as_the_dense_encoder_bit_for_bit(
    bert: Path, texts: list[str], packed: bool
) -> None:
    encoder, dense = started(bert), DenseEncoder.from_pretrained(bert)
    views: list[TextEncoder] = [dense, *map(encoder.of_source, NAMES)]
    for each in views:
        each.packed = each.packed_training = packed
    plain = dense.embed(dense.tokenize(texts, "document"), "document")
    for name in NAMES:
        own = encoder.of_source(name).tokenize(texts, "document")
        assert torch.equal(encoder.embed(own, "document"), plain)
        np.testing.assert_array_equal(
            encoder.of_source(name).encode_queries(texts), dense.encode_queries(texts)
        )
    mixed = encoder.embed(marked(encoder, texts, NAMES * 4), "document")
    torch.testing.assert_close(mixed, plain, rtol=0, atol=1e-6)  # other batches: rounding


@pytest.mark.parametrize("learns", [True, False])
def test_a_gate_starts_as_the_dense_encoder_bit_for_bit(
    bert: Path, texts: list[str], learns: bool
) -> None:
    encoder, dense = started(bert, 3, gate_learns=learns), DenseEncoder.from_pretrained(bert)
    dense.packed = dense.packed_training = False
    features = dense.tokenize(texts, "document")
    assert torch.equal(encoder.embed(features, "document"), dense.embed(features, "document"))
    with torch.no_grad():
        for layer in expert_layers(encoder.model).values():
            assert isinstance(layer.gate, Gate)
            layer.gate.weight.mul_(50)  # any routing
    assert torch.equal(encoder.embed(features, "document"), dense.embed(features, "document"))
    np.testing.assert_allclose(
        encoder.encode_documents(texts), dense.encode_documents(texts), atol=2e-6
    )


def test_an_expert_has_gradients_of_its_own_texts_only(bert: Path, texts: list[str]) -> None:
    encoder = started(bert)
    features = marked(encoder, texts, ["gold"] * len(texts))
    encoder.embed(features, "document").square().mul(torch.arange(32)).sum().backward()
    for name, parameter in encoder.expert_parameters().items():
        assert (parameter.grad is not None) == (".experts.0." in name)
    mine = encoder.model.get_parameter("encoder.layer.0.output.dense.experts.0.weight").grad
    # of two datasets: that of the rows of each, as the dense encoder has it
    encoder.module.zero_grad()
    encoder.embed(marked(encoder, texts, NAMES * 4), "document").square().mul(
        torch.arange(32)
    ).sum().backward()
    dense = DenseEncoder.from_pretrained(bert)
    for number in range(2):
        dense.module.zero_grad()
        own = dense.tokenize(texts[number::2], "document")
        dense.embed(own, "document").square().mul(torch.arange(32)).sum().backward()
        for name in ("intermediate.dense", "output.dense"):
            place = f"encoder.layer.1.{name}"
            ours = encoder.model.get_parameter(f"{place}.experts.{number}.weight").grad
            theirs = dense.model.get_parameter(f"{place}.weight").grad
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert mine is not None
    assert float(mine.abs().max()) > 0


def mlp_by_hand(encoder: ExpertEncoder, states: NDArray[np.float64]) -> NDArray[np.float64]:
    """The first block's feed-forward network, token by token in float64, without its sum."""
    layers = expert_layers(encoder.model)
    inner = layers["encoder.layer.0.intermediate.dense"]
    outer = layers["encoder.layer.0.output.dense"]
    assert isinstance(inner.gate, Gate)
    gate = inner.gate.weight.detach().double().numpy()
    made = []
    for state in states:
        number = int(np.argmax(gate @ state))
        first, second = inner.experts[number], outer.experts[number]
        assert isinstance(first, Expert)
        assert isinstance(second, Expert)
        (w, b), (v, c) = (
            [p.detach().double().numpy() for p in each.parameters()] for each in (first, second)
        )
        hidden = gelu(torch.tensor(w @ state + b)).numpy()
        made.append(v @ hidden + c)
    return np.array(made)


@pytest.mark.parametrize("inference", [True, False])
def test_a_gate_by_hand(bert: Path, inference: bool) -> None:
    encoder = trained(bert, 3)
    block = encoder.model.encoder.layer[0]
    states = torch.randn((2, 20, 32), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode(inference):
        ours = block.output.dense(block.intermediate(states))
    expected = mlp_by_hand(encoder, states.reshape(40, 32).double().numpy())
    np.testing.assert_allclose(ours.detach().reshape(40, 32).numpy(), expected, atol=1e-4)
    gate = block.intermediate.dense.gate
    assert len(set((states.reshape(40, 32) @ gate.weight.T).argmax(1).tolist())) == 3


def test_the_gate_learns_as_if_outputs_were_weighed(bert: Path) -> None:
    """The gradient is that of p * expert(x), in float64, where p / p is the factor."""
    gate = Gate(4, 3, learns=True).double()
    states = torch.randn((5, 4), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    outputs = torch.randn((5, 1), dtype=torch.float64)
    choice = gate.choose(states)
    assert choice.factor is not None
    assert bool((choice.factor == 1).all())
    (choice.factor.double() * outputs).sum().backward()
    weight = gate.weight.detach().double().numpy()
    expected = np.zeros_like(weight)
    for state, output in zip(states.numpy(), outputs.numpy()[:, 0], strict=True):
        powers = np.exp(weight @ state)
        shares = powers / powers.sum()
        top = int(shares.argmax())
        for number in range(3):  # d log p_top
            expected[number] += output * ((number == top) - shares[number]) * state
    assert gate.weight.grad is not None
    np.testing.assert_allclose(gate.weight.grad.numpy(), expected, atol=1e-6)
    assert not Gate(4, 3, learns=False).weight.requires_grad


def test_a_gate_gives_each_expert_the_gradients_of_its_tokens(bert: Path, texts: list[str]) -> None:
    encoder = trained(bert, 2, expert_layers=[2])
    assert set(expert_layers(encoder.model)) == {
        "encoder.layer.1.intermediate.dense", OUTER,
    }  # fmt: skip
    gate = encoder.model.get_submodule("encoder.layer.1.intermediate.dense").gate
    features = encoder.tokenize(texts, "document")
    encoder.embed(features, "document")[:, 0].sum().backward()
    assert float(gate.weight.grad.abs().max()) > 0
    norm = encoder.model.encoder.layer[1].attention.output.LayerNorm
    with torch.no_grad():  # the same state for every token, which is expert 0's
        gate.weight[1] = -gate.weight[0]
        norm.weight.zero_()
        norm.bias.copy_(gate.weight[0])
    encoder.module.zero_grad()
    encoder.embed(features, "document")[:, 0].sum().backward()
    experts = encoder.model.get_submodule(OUTER).experts
    assert [each.weight.grad is None for each in experts] == [False, True]


@pytest.mark.parametrize("experts", [NAMES, 3])
def test_saved_and_opened(
    bert: Path, texts: list[str], tmp_path: Path, experts: list[str] | int
) -> None:
    encoder = trained(bert, experts, expert_layers=[2], query_prompt="river ")
    encoder.save_pretrained(tmp_path / "model")
    opened = open_encoder(tmp_path / "model")
    assert opened.fingerprint == encoder.fingerprint != trained(bert, experts).fingerprint
    assert opened.mixture == encoder.mixture
    if isinstance(experts, int):
        np.testing.assert_array_equal(opened.encode_queries(texts), encoder.encode_queries(texts))
        return
    for name in (*NAMES, "mean"):
        alone = ExpertEncoder.from_pretrained(tmp_path / "model", expert=name)
        assert type(alone) is DenseEncoder
        ours, theirs = (each.encode_queries(texts) for each in (alone, encoder.alone(name)))
        np.testing.assert_array_equal(ours, theirs)
    alone.save_pretrained(tmp_path / "alone")  # of the mean: a plain folder
    assert open_encoder(tmp_path / "alone").fingerprint == alone.fingerprint
    weights = [
        encoder.model.get_parameter(f"{OUTER}.experts.{number}.weight").detach().double().numpy()
        for number in range(2)
    ]
    mean = alone.model.encoder.layer[1].output.dense.weight.detach().numpy()
    np.testing.assert_allclose(mean, np.mean(weights, axis=0), atol=1e-7)
    vectors = [encoder.alone(name).encode_queries(texts) for name in NAMES]
    assert float(np.abs(vectors[0] - vectors[1]).max()) > 0.01


def test_copies_views_and_the_collator(bert: Path) -> None:
    encoder = trained(bert)
    texts = Text("q", "gold"), (Text("d", "river"), Text("e", "stone"))
    batch = BiEncoderCollator(encoder)([Example(*texts, source="water")])
    assert batch["features"]["document"]["expert"].tolist() == [[1], [1]]
    vectors = encoder.embed(batch["features"]["document"], "document")
    copied = copy.deepcopy(encoder)
    with torch.no_grad():
        for parameter in encoder.expert_parameters().values():
            parameter.mul_(2)  # the part of a dataset follows what is trained
    again = encoder.embed(batch["features"]["document"], "document")
    assert float((again - vectors).detach().abs().max()) > 0.01
    assert torch.equal(copied.embed(batch["features"]["document"], "document"), vectors)
    encoder.module.train()
    assert encoder.of_source("gold").model.training
    encoder.module.eval()
    assert not encoder.of_source("gold").model.training
    assert encoder_of(DenseEncoder.from_pretrained(bert), "gold").kind == "dense"


@pytest.mark.thorough
def test_training_resumes_is_cached_and_moves_an_expert_by_its_dataset(
    bert: Path, tmp_path: Path
) -> None:
    words = ["river", "gold", "stone", "water", "sluice", "query", "document", "search"]

    def fitted(folder: str, **options: Any) -> dict[str, torch.Tensor]:
        encoder = started(bert)
        for part in encoder.module.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        examples = [
            Example(Text(f"q{n}", words[n]), (Text(f"d{n}", f"the {words[n]} of {n}"),),
                    source=NAMES[n % 2])
            for n in range(8)
        ]  # fmt: skip
        fit(encoder, examples, InfoNCE(), output=tmp_path / folder, trainer=TRAINER, **options)
        return {n: p.detach().clone() for n, p in encoder.model.named_parameters()}

    whole = fitted("one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    shutil.rmtree(tmp_path / "two" / "checkpoint-4")
    resumed, cached = fitted("two"), fitted("three", gradient_cache=1)
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name
        torch.testing.assert_close(value, cached[name], rtol=0, atol=2e-5)
    assert not torch.equal(whole[f"{OUTER}.experts.0.weight"], whole[f"{OUTER}.experts.1.weight"])


def test_experts_alone_are_tuned(bert: Path, texts: list[str], tmp_path: Path) -> None:
    encoder = started(bert, 2, gate_learns=False)
    tuned = tune(encoder, {"type": "experts"})
    learning = {n for n, p in encoder.model.named_parameters() if p.requires_grad}
    assert learning == {n for n in encoder.expert_parameters() if not n.endswith("gate.weight")}
    assert tuned.trainable == 2 * 2 * (2 * 32 * 64 + 64 + 32)  # layers, experts
    encoder.save_pretrained(tmp_path / "tuned")
    assert open_encoder(tmp_path / "tuned").mixture == encoder.mixture
    with pytest.raises(ConfigError, match=r"lora: adds parts .* take experts or bitfit"):
        tune(started(bert), {"type": "lora"})
    with pytest.raises(ConfigError, match=r"has none; give encoder: {type: experts"):
        tune(DenseEncoder.from_pretrained(bert), {"type": "experts"})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "experts: missing"),
        ({"experts": 1}, "experts is 1, expected a whole number, 2 to 64"),
        ({"experts": ["gold"]}, "one alone is a dense encoder"),
        ({"experts": ["gold", "gold"]}, "'gold' is named twice"),
        ({"experts": ["gold", "mean"]}, "'mean' stands for the mean"),
        ({"experts": ["gold", 3]}, "experts: 3, expected the name of a dataset"),
        ({"experts": NAMES, "gate_learns": True}, "gate_learns: experts names datasets"),
        ({"experts": 2, "expert_layers": [3]}, "expert_layers is 3, .* 1 to 2"),
        ({"experts": 2, "expert_layers": []}, "expected a list of layers"),
        ({"experts": 2, "expert_layers": [1, 1]}, "names a layer twice"),
        ({"experts": 2, "expert": "gold"}, "expert: 'gold'; .* has no experts"),
    ],
)
def test_what_cannot_be_is_refused(bert: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ExpertEncoder.from_pretrained(bert, **options)


def test_texts_without_a_dataset_are_refused(bert: Path, tmp_path: Path) -> None:
    encoder = trained(bert)
    with pytest.raises(ConfigError, match=r"encoder.expert: missing: .* gold, water, mean"):
        encoder.encode_queries(["gold"])
    with pytest.raises(ConfigError, match="these texts are of none; tokenise them by of_source"):
        encoder.embed(encoder.tokenize(["gold"], "query"), "query")
    with pytest.raises(ConfigError, match="none for 'stone'"):
        encoder.of_source("stone")
    with pytest.raises(ConfigError, match="the examples name none; train on several"):
        encoder.of_source("")
    with pytest.raises(ModelError, match="runs as one of them"):
        encoder.model(**encoder.tokenize(["gold"], "query"))
    encoder.save_pretrained(tmp_path / "model")
    with pytest.raises(ModelError, match=r"a sparse-expert encoder's folder; .* type: experts"):
        DenseEncoder.from_pretrained(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"expert: 'god'; .* did you mean 'gold'"):
        ExpertEncoder.from_pretrained(tmp_path / "model", expert="god")
    with pytest.raises(ConfigError, match=r"experts: 2; .* has experts of its own"):
        ExpertEncoder.from_pretrained(tmp_path / "model", experts=2)


def test_one_expert_is_exported(bert: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    encoder = trained(bert)
    encoder.save_pretrained(tmp_path / "model")
    with pytest.raises(ConfigError, match="has several experts; export one"):
        export_onnx(tmp_path / "model", tmp_path / "onnx")
    ExpertEncoder.from_pretrained(bert, experts=2).save_pretrained(tmp_path / "gated")
    with pytest.raises(ConfigError, match="type experts is not exported as ONNX"):
        export_onnx(tmp_path / "gated", tmp_path / "onnx")
    report = export_onnx(encoder.alone("gold"), tmp_path / "onnx")
    assert report.kind == "dense"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"count": 60}, r"experts.safetensors: .*experts.10.bias is missing, expected \(64,\)"),
        ({"count": 60, "layers": [2]}, "experts.safetensors: .* is"),
        ({"names": ["gold", "mean"]}, "sluice.json: experts is .*stands for the mean"),
        ({"layers": [9]}, "sluice.json: experts is .*expert_layers is 9"),
        ({"layers": [1]}, "expected no such tensor"),
        ({"names": "ab"}, "sluice.json"),
        ({"names": {}}, "sluice.json"),
        (None, "has no experts"),
    ],
)
def test_damaged_folders(bert: Path, tmp_path: Path, change: Any, says: str) -> None:
    started(bert, 2).save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "sluice.json"
    facts = json.loads(file.read_text())
    if change is None:
        del facts["experts"]
    else:
        facts["experts"].update(change)
    file.write_text(json.dumps(facts))
    with pytest.raises(ModelError, match=says):
        open_encoder(tmp_path / "model")


def test_what_has_no_plain_network_is_refused(bert: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert)
    encoder.model.encoder.layer[1].intermediate.dense = torch.nn.Linear(32, 60)
    from sluice.encoders.dense.experts.mixture import install

    with pytest.raises(ConfigError, match="layer 2 of BertModel has no plain feed-forward"):
        install(encoder.model, 2, [2], gated=False, learns=False)
    assert not any(isinstance(part, ExpertLinear) for part in encoder.model.modules())
