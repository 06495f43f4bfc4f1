"""Parameter-efficient tuning: nothing changes at the start, little is trained, merging is exact."""

import copy
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_architectures import save_architecture
from tuned_encoders import TEXTS, embedded, move, named, outputs

from sluice.encoders import CrossEncoder, DenseEncoder, SpladeEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.tuning.tune import merge, tune
from sluice.training.batches.forward import BiEncoderModule

KINDS = {"dense": DenseEncoder, "splade": SpladeEncoder, "cross_encoder": CrossEncoder}
ADDED = [{"type": "adapter"}, {"type": "gated_prefix", "tokens": 4}]
CONNECTED = [{"type": "iaa", "variant": each} for each in "SPG"]
PREFIX = {"type": "prefix", "tokens": 4}
MERGED = [
    {"type": "lora"},
    {"type": "lora", "targets": "attention", "rank": 2},
    {"type": "lora", "targets": ["attention.output.dense", "value"], "alpha": 3},
    {"type": "ia3"},
    {"type": "bitfit"},
    {"type": "ln_tuning"},
]


def opened(kind: str, folders: dict[str, Path], **options: Any) -> Any:
    return KINDS[kind].from_pretrained(folders[kind], device="cpu", **options)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("tuned")
    return {kind: save_architecture(base / kind, "Bert", kind) for kind in KINDS}


def network_output(encoder: Any) -> torch.Tensor:
    """What the transformer's own pass gives."""
    features = encoder.pad([[5, 6, 7], [8, 9]])
    with torch.no_grad():
        output: torch.Tensor = encoder.model(**features)[0]
        return output


def combined(settings: list[dict[str, Any]]) -> Any:
    """Every kind of encoder, and all settings with the first."""
    cases = [("dense", each) for each in settings]
    cases += [(kind, each) for kind in ("splade", "cross_encoder") for each in settings[::3]]
    return pytest.mark.parametrize(
        ("kind", "settings"), cases, ids=[f"{kind}-{named(each)}" for kind, each in cases]
    )


@pytest.mark.thorough
@combined(MERGED + ADDED + CONNECTED)
def test_tuning_starts_unchanged_moves_and_is_never_ignored(
    kind: str, settings: dict[str, Any], folders: dict[str, Path]
) -> None:
    encoder = opened(kind, folders)
    before, exact, fingerprint = outputs(encoder), network_output(encoder), encoder.fingerprint
    tune(encoder, settings)
    assert torch.equal(network_output(encoder), exact), "zero at the start"
    assert np.abs(outputs(encoder) - before).max() < 1e-5
    move(encoder)
    moved = outputs(encoder)
    assert np.abs(moved - before).max() > 1e-3
    assert np.abs(moved - embedded(encoder)).max() < 1e-5, "encoding passes it by"
    assert encoder.fingerprint != fingerprint


@pytest.mark.thorough
@combined(MERGED)
def test_merging_keeps_outputs_and_leaves_an_ordinary_model(
    kind: str, settings: dict[str, Any], folders: dict[str, Path], tmp_path: Path
) -> None:
    encoder = opened(kind, folders)
    names = list(encoder.module.state_dict())
    outputs(encoder)  # a packed form of the old weights must not come back
    tune(encoder, settings)
    move(encoder)
    encoder.save_pretrained(tmp_path / "unmerged")
    moved, fingerprint = outputs(encoder), encoder.fingerprint
    merge(encoder)
    assert np.abs(outputs(encoder) - moved).max() < 1e-5
    assert np.abs(embedded(encoder) - moved).max() < 1e-5
    assert list(encoder.module.state_dict()) == names
    assert all(parameter.requires_grad for parameter in encoder.module.parameters())
    assert not hasattr(encoder.model, "tuned")
    assert not hasattr(encoder.model, "peft_config")
    assert encoder.fingerprint == fingerprint, "it is the same encoder"
    encoder.save_pretrained(tmp_path / "merged")
    for name in ("merged", "unmerged"):
        again = KINDS[kind].from_pretrained(tmp_path / name, device="cpu")
        assert np.abs(outputs(again) - moved).max() < 1e-5
        assert again.fingerprint == fingerprint
        assert not (tmp_path / name / "adapter").exists()


@pytest.mark.thorough
@combined([*ADDED, PREFIX, CONNECTED[2]])
def test_what_cannot_be_merged_is_saved_beside_and_loaded_again(
    kind: str,
    settings: dict[str, Any],
    folders: dict[str, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    encoder = opened(kind, folders)
    plain = outputs(encoder)
    tune(encoder, settings)
    move(encoder)
    merge(encoder)
    moved = outputs(encoder)
    with caplog.at_level(logging.WARNING, "sluice"):
        encoder.save_pretrained(tmp_path / "m")
    assert "sentence-transformers" in caplog.text
    place = tmp_path / "m"
    if kind == "cross_encoder":  # whose network would be a reranker without it
        place = place / "0_Transformer"
    else:
        assert json.loads((place / "sluice.json").read_text())["adapter"] == "adapter"
    assert {f.name for f in (place / "adapter").iterdir()} == {
        "adapter.json", "adapter.safetensors",
    }  # fmt: skip
    again = open_encoder(tmp_path / "m", device="cpu")
    assert again.fingerprint == encoder.fingerprint
    assert np.array_equal(outputs(again), moved)
    again.save_pretrained(tmp_path / "twice")
    assert np.array_equal(outputs(open_encoder(tmp_path / "twice", device="cpu")), moved)
    if kind != "cross_encoder":  # its head was trained too
        (tmp_path / "m" / "adapter").rename(tmp_path / "elsewhere")
        without = KINDS[kind].from_pretrained(tmp_path / "m", device="cpu")
        assert np.abs(outputs(without) - plain).max() < 1e-5, "the backbone is the old one"


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["Roberta", "MPNet", "DistilBert", "ModernBert"])
@pytest.mark.parametrize(
    "settings", [MERGED[0], MERGED[3], *ADDED, PREFIX, CONNECTED[1]], ids=named
)
def test_other_architectures(family: str, settings: dict[str, Any], tmp_path: Path) -> None:
    encoder = DenseEncoder.from_pretrained(
        save_architecture(tmp_path / "m", family, "dense"), device="cpu"
    )
    if family == "MPNet" and settings["type"].endswith("prefix"):
        with pytest.raises(ConfigError, match="MPNetModel computes its attention by itself"):
            tune(encoder, settings)
        return
    before = embedded(encoder)
    tune(encoder, settings)
    if settings is not PREFIX:
        assert np.abs(embedded(encoder) - before).max() < 1e-6
    move(encoder)
    moved = outputs(encoder)
    assert np.abs(moved - before).max() > 1e-3
    encoder.save_pretrained(tmp_path / "s")
    again = DenseEncoder.from_pretrained(tmp_path / "s", device="cpu")
    assert np.abs(outputs(again) - moved).max() < 1e-5


@pytest.mark.thorough
@pytest.mark.parametrize(
    "settings", [MERGED[0], *MERGED[3:], *ADDED, PREFIX, CONNECTED[0]], ids=named
)
def test_training_leaves_the_backbone_bitwise_as_it_was(
    settings: dict[str, Any], folders: dict[str, Path], tmp_path: Path
) -> None:
    from sluice.training import fit
    from sluice.training.losses.contrastive.softmax import InfoNCE
    from sluice.training.protocol import Example, Text

    encoder = opened("dense", folders)
    tune(encoder, settings)
    frozen = {n: p.clone() for n, p in encoder.module.named_parameters() if not p.requires_grad}
    trained = {n: p.clone() for n, p in encoder.module.named_parameters() if p.requires_grad}
    before = outputs(encoder)
    examples = [
        Example(Text(f"q{i}", text), (Text(f"d{i}", f"{text} of the river"),), (1.0,))
        for i, text in enumerate(TEXTS * 2)
    ]
    fit(
        encoder, examples, InfoNCE(), output=tmp_path,
        trainer={"max_steps": 3, "per_device_train_batch_size": 4, "learning_rate": 0.05},
    )  # fmt: skip
    now = dict(encoder.module.named_parameters())
    assert len(frozen) > 10
    assert all(torch.equal(now[name], value) for name, value in frozen.items())
    assert any(not torch.equal(now[name], value) for name, value in trained.items())
    after = outputs(encoder)
    assert np.abs(after - before).max() > 1e-4
    merge(encoder)
    assert np.abs(outputs(encoder) - after).max() < 1e-5


@pytest.mark.parametrize("settings", [MERGED[0], *ADDED, PREFIX], ids=named)
def test_gradients_pass_frozen_layers_with_activation_checkpointing(
    settings: dict[str, Any], folders: dict[str, Path]
) -> None:
    encoder = opened("dense", folders)
    tune(encoder, settings)
    move(encoder)
    BiEncoderModule(encoder).activation_checkpointing_enable()
    encoder.module.train()
    encoder.embed(encoder.tokenize(TEXTS, "query"), "query").square()[:, 0].sum().backward()
    first = [p for n, p in encoder.module.named_parameters() if ".layer.0." in n]
    assert any(p.grad is not None and p.grad.any() for p in first if p.requires_grad)


def test_heads_are_trained_on(folders: dict[str, Path]) -> None:
    cross = opened("cross_encoder", folders)
    tune(cross, {"type": "lora"})
    trained = {n for n, p in cross.module.named_parameters() if p.requires_grad}
    assert {"classifier.weight", "classifier.bias", "bert.pooler.dense.weight"} <= trained
    assert all("lora_" in n or "classifier" in n or "pooler" in n for n in trained)
    dense = opened("dense", folders, projection=8)
    tune(dense, {"type": "gated_prefix"})
    trained = {n for n, p in dense.module.named_parameters() if p.requires_grad}
    assert all("prefix" in n or "projection" in n for n in trained)
    assert any("projection" in n for n in trained)
    splade = opened("splade", folders)
    tune(splade, {"type": "lora"})
    assert all("lora_" in n for n, p in splade.module.named_parameters() if p.requires_grad)


def test_towers_are_tuned_each_and_a_frozen_one_is_left_alone(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    from sluice.encoders.towers import TowerEncoder

    both = TowerEncoder(opened("dense", folders), opened("dense", folders))
    tune(both, {"type": "lora"})
    names = [n for n, p in both.module.named_parameters() if p.requires_grad]
    assert names
    assert all("lora_" in name for name in names)
    assert {name.partition(".")[0] for name in names} == {"query", "document"}
    move(both)
    queries = both.encode_queries(TEXTS)
    merge(both)
    both.save_pretrained(tmp_path / "t")
    again = open_encoder(tmp_path / "t", device="cpu")
    assert np.abs(again.encode_queries(TEXTS) - queries).max() < 1e-5
    one = TowerEncoder(opened("dense", folders), opened("dense", folders), freeze="document")
    tune(one, {"type": "lora"})
    assert not any(p.requires_grad for p in one.document.module.parameters())
    assert not hasattr(one.document.model, "tuned")
    merge(one)
    assert not any(p.requires_grad for p in one.document.module.parameters())


def test_a_merged_model_loads_in_sentence_transformers(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = opened("dense", folders)
    tune(encoder, {"type": "lora"})
    move(encoder)
    merge(encoder)
    encoder.save_pretrained(tmp_path / "m")
    theirs = SentenceTransformer(str(tmp_path / "m"), device="cpu").encode(TEXTS)
    assert np.abs(theirs - outputs(encoder)).max() < 1e-5


def test_the_seed_decides_the_start(folders: dict[str, Path]) -> None:
    def drawn(seed: int) -> torch.Tensor:
        encoder = opened("dense", folders)
        torch.manual_seed(99)
        tune(encoder, {"type": "lora"}, seed=seed)
        assert torch.initial_seed() == 99
        return encoder.model.encoder.layer[0].attention.self.query.lora_A["default"].weight

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_a_tuned_encoder_can_be_copied(folders: dict[str, Path]) -> None:
    for settings in (*ADDED, {"type": "lora"}):
        encoder = opened("dense", folders)
        tune(encoder, settings)
        move(encoder)
        twin = copy.deepcopy(encoder)
        moved = outputs(encoder)
        assert np.array_equal(outputs(twin), moved)
        move(twin)
        assert np.array_equal(outputs(encoder), moved)


def test_dropout_follows_the_mode_of_the_model(folders: dict[str, Path]) -> None:
    encoder = opened("dense", folders)
    tune(encoder, {"type": "lora", "dropout": 0.5})
    move(encoder)
    assert np.array_equal(embedded(encoder), embedded(encoder))
    encoder.module.train()
    assert not np.array_equal(embedded(encoder), embedded(encoder))


def test_gpt2_is_tuned_too(tmp_path: Path) -> None:
    from tiny_models import save_tokenizer
    from transformers import GPT2Config, GPT2Model

    size = save_tokenizer(tmp_path / "m")
    torch.manual_seed(2)
    config = GPT2Config(
        vocab_size=size, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.2
    )
    GPT2Model(config).save_pretrained(tmp_path / "m")
    for settings in ({"type": "lora"}, {"type": "ia3"}, *ADDED, {"type": "bitfit"}):
        encoder = DenseEncoder.from_pretrained(tmp_path / "m", device="cpu", pooling="last")
        before = embedded(encoder)
        tune(encoder, settings)
        assert np.abs(embedded(encoder) - before).max() < 1e-6
        move(encoder)
        moved = outputs(encoder)
        merge(encoder)
        assert np.abs(outputs(encoder) - moved).max() < 1e-5


def test_a_tuned_encoder_is_not_tuned_again(folders: dict[str, Path]) -> None:
    encoder = opened("dense", folders)
    tune(encoder, {"type": "lora"})
    with pytest.raises(ConfigError, match=r"already tuned \(lora\)"):
        tune(encoder, {"type": "bitfit"})
    merge(encoder)
    merge(encoder)
    tune(encoder, {"type": "bitfit"})
