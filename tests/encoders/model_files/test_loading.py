"""Model folders that are incomplete or broken are refused; every fault is a ModelError."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pytest
import transformers
from tiny_models import save_model, save_tokenizer

from sluice.encoders import CrossEncoder, DenseEncoder, SpladeEncoder, start_splade
from sluice.encoders.foundation.build import declared
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.options import TextGraphOptions, takes_options
from sluice.encoders.model_files.registry import kind_of, open_encoder

SMALL: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
}  # fmt: skip


@pytest.fixture(scope="module")
def saved_dense(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "dense"
    DenseEncoder.from_pretrained(bert, projection=8).save_pretrained(folder)
    return folder


@pytest.fixture
def dense(saved_dense: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder that a test may damage."""
    return shutil.copytree(saved_dense, tmp_path / "dense")


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("kind", [DenseEncoder, SpladeEncoder, CrossEncoder])
def test_weights_that_lack_a_layer_are_refused(
    kind: Any, bert: Path, masked_bert: Path, pair_bert: Path, tmp_path: Path
) -> None:
    source = {DenseEncoder: bert, SpladeEncoder: masked_bert, CrossEncoder: pair_bert}[kind]
    shutil.copytree(source, tmp_path / "m")
    change(tmp_path / "m" / "config.json", num_hidden_layers=3)
    with pytest.raises(ModelError, match=r"lack 16 parameters.*layer\.2\."):
        kind.from_pretrained(tmp_path / "m")
    with pytest.raises(ModelError, match=r"layer\.2\."):
        start_splade(tmp_path / "m", ["gold"])
    change(tmp_path / "m" / "config.json", num_hidden_layers=2, intermediate_size=48)
    with pytest.raises(ModelError, match=r"is \[.*64.*\] in the weights, expected \[.*48.*\]"):
        kind.from_pretrained(tmp_path / "m")


def test_a_fresh_head_is_a_warning_and_a_missing_one_for_splade_an_error(
    bert: Path, pair_bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "sluice"):
        CrossEncoder.from_pretrained(pair_bert)
        assert not caplog.records
        CrossEncoder.from_pretrained(bert)
    assert [record.message.split(": ", 1)[1] for record in caplog.records] == [
        "no one-label head, so a new one was drawn at random; train it before use"
    ]
    shutil.copytree(bert, tmp_path / "m")
    change(tmp_path / "m" / "config.json", architectures=["BertForMaskedLM"])
    with pytest.raises(ModelError, match=r"lack 6 parameters.*cls\.predictions"):
        SpladeEncoder.from_pretrained(tmp_path / "m")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["Bert", "Roberta", "XLMRoberta", "MPNet", "Albert", "Electra", "DistilBert"]
)
def test_a_masked_language_model_is_a_dense_encoder_without_chance(
    name: str, tmp_path: Path
) -> None:
    size = save_tokenizer(tmp_path / "m")
    settings = {**SMALL, "vocab_size": size, "max_position_embeddings": 70, "pad_token_id": 0}
    if name == "DistilBert":
        settings = {"vocab_size": size, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
    config = getattr(transformers, name + "Config")(**settings)
    getattr(transformers, name + "ForMaskedLM")(config).save_pretrained(tmp_path / "m")
    first, second = (DenseEncoder.from_pretrained(tmp_path / "m") for _ in range(2))
    assert first.fingerprint == second.fingerprint
    assert not any("pooler" in key for key in first.model.state_dict())
    first.save_pretrained(tmp_path / "dense")
    assert DenseEncoder.from_pretrained(tmp_path / "dense").fingerprint == first.fingerprint
    scores = [
        CrossEncoder.from_pretrained(tmp_path / "dense").score([("gold", "river")])
        for _ in range(2)
    ]
    np.testing.assert_array_equal(*scores)


def listed(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text("[]")  # type: ignore[return-value]


def written(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text)  # type: ignore[return-value]


def edited(name: str, **values: object) -> Callable[[Path], None]:
    return lambda folder: change(folder / name, **values)


def without_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (folder / name).unlink(missing_ok=True)


@pytest.mark.parametrize(
    "damage",
    [
        listed("config.json"),
        written("config.json", "{"),
        edited("config.json", hidden_size="x"),
        edited("config.json", model_type=["x"]),
        edited("config.json", hidden_act="x"),
        edited("config.json", vocab_size=100),
        written("modules.json", '{"a": 1}'),
        written("modules.json", '["x"]'),
        written("modules.json", '[{"path": ""}]'),
        written("modules.json", '[{"type": "a.Transformer", "path": "../.."}]'),
        written("modules.json", '[{"type": "a.Bag", "path": ""}]'),
        listed("sluice.json"),
        edited("sluice.json", query_length="many"),
        listed("1_Pooling/config.json"),
        listed("sentence_bert_config.json"),
        edited("sentence_bert_config.json", max_seq_length="many"),
        listed("config_sentence_transformers.json"),
        edited("config_sentence_transformers.json", prompts=["x"]),
        listed("2_Dense/config.json"),
        edited("2_Dense/config.json", in_features=31),
        edited("2_Dense/config.json", out_features="x"),
        edited("2_Dense/config.json", out_features=True),
        edited("2_Dense/config.json", out_features=9),
        edited("2_Dense/config.json", bias=False),
        edited("2_Dense/config.json", activation_function="a.Softplus"),
        written("2_Dense/model.safetensors", "not weights"),
        written("tokenizer.json", "[]"),
        written("tokenizer.json", "{"),
        edited("tokenizer_config.json", model_max_length="x"),
        without_tokenizer,
    ],
)
def test_a_broken_folder_is_a_model_error(dense: Path, damage: Callable[[Path], None]) -> None:
    damage(dense)
    with pytest.raises(ModelError):
        DenseEncoder.from_pretrained(dense)


def test_broken_folders_have_no_kind(dense: Path, masked_bert: Path, tmp_path: Path) -> None:
    for name, text in (("sluice.json", "[]"), ("sluice.json", "{}"), ("sluice.json", "{")):
        (dense / name).write_text(text)
        with pytest.raises(ModelError):
            open_encoder(dense)
    (dense / "sluice.json").unlink()
    (dense / "modules.json").write_text('["x"]')
    with pytest.raises(ModelError):
        kind_of(dense)
    shutil.copytree(masked_bert, tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="expected a JSON object"):
        SpladeEncoder.from_pretrained(tmp_path / "m")


def test_a_tokenizer_needs_something_to_pad_with(bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert, tmp_path / "m")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(bert / "tokenizer.json"))
    tokenizer.save_pretrained(tmp_path / "m")
    with pytest.raises(ModelError, match="neither a padding nor an end-of-text token"):
        DenseEncoder.from_pretrained(tmp_path / "m")


def test_decoder_models_score_pairs_with_the_end_of_text_as_padding(tmp_path: Path) -> None:
    size = save_tokenizer(tmp_path / "m")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "m" / "tokenizer.json"), eos_token="[SEP]"
    )
    tokenizer.save_pretrained(tmp_path / "m")
    config = transformers.LlamaConfig(**SMALL, vocab_size=size, num_labels=1, pad_token_id=None)
    transformers.LlamaForSequenceClassification(config).save_pretrained(tmp_path / "m")
    encoder = CrossEncoder.from_pretrained(tmp_path / "m", max_length=60)
    pairs = [("gold", "river water"), ("gold", "stone"), ("x", "deep " * 20)]
    alone = np.concatenate([encoder.score([pair]) for pair in pairs])
    np.testing.assert_allclose(encoder.score(pairs), alone, atol=1e-5)


def test_models_of_the_wrong_shape_are_refused(tmp_path: Path) -> None:
    size = save_tokenizer(tmp_path / "bart")
    bart = transformers.BartConfig(
        vocab_size=size, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=32,
        decoder_ffn_dim=32, encoder_attention_heads=4, decoder_attention_heads=4,
        max_position_embeddings=64,
    )  # fmt: skip
    transformers.BartModel(bart).save_pretrained(tmp_path / "bart")
    with pytest.raises(ModelError, match="an encoder and a decoder"):
        DenseEncoder.from_pretrained(tmp_path / "bart")
    size = save_tokenizer(tmp_path / "mobile")
    mobile = transformers.MobileBertConfig(
        **SMALL, vocab_size=size, embedding_size=16, intra_bottleneck_size=32,
        true_hidden_size=32, max_position_embeddings=64,
    )  # fmt: skip
    transformers.MobileBertForMaskedLM(mobile).save_pretrained(tmp_path / "mobile")
    with pytest.raises(ModelError, match="BERT-like head"):
        SpladeEncoder.from_pretrained(tmp_path / "mobile")


@pytest.mark.parametrize("name", ["", " ", ".", "~nouser_at_all/x", "[1]", "a/b/c"])
def test_a_name_that_is_no_model(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in (DenseEncoder, SpladeEncoder, CrossEncoder):
        with pytest.raises(ModelError):
            kind.from_pretrained(name)


@pytest.mark.parametrize("device", ["cuda:99", "mps", "meta", "nothing", "", ["cpu"]])
def test_a_device_that_is_not_here(device: Any, bert: Path) -> None:
    with pytest.raises(ConfigError, match="device"):
        DenseEncoder.from_pretrained(bert, device=device)


@pytest.mark.parametrize(
    "options",
    [
        {"query_model": "bag"},
        {"query_model": ["bow"]},
        {"query_top_k": 0},
        {"query_top_k": "x"},
        {"document_top_k": True},
        {"document_top_k": 1.5},
    ],
)
def test_splade_settings_are_checked(options: Any, masked_bert: Path) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        SpladeEncoder.from_pretrained(masked_bert, **options)


@pytest.mark.parametrize("projection", [0, -1])
def test_a_projection_has_dimensions(projection: int, bert: Path) -> None:
    with pytest.raises(ConfigError, match="projection"):
        DenseEncoder.from_pretrained(bert, projection=projection)


def test_a_tiny_model_is_complete(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m", "Model")
    assert DenseEncoder.from_pretrained(folder).dim == 32


def test_shared_options_are_parameters_with_defaults() -> None:
    @takes_options(TextGraphOptions)
    def opened(model: str, *, seed: int = 13, **options: Unpack[TextGraphOptions]) -> Any:
        return options

    every = declared(opened)
    assert [*every][:2] == ["model", "seed"]
    assert "options" not in every
    assert every["backend"].choices == ("torch", "onnx", "openvino")
    options = opened("m", device="cpu")
    assert {*options} == {*every} - {"model", "seed"}
    assert (options["device"], options["dtype"], options["backend"]) == ("cpu", "float32", None)
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        opened("m", colour="red")
