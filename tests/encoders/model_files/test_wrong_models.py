"""Models that cannot be what they are asked to be: one error each, with what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import save_model

from sluice.encoders import CrossEncoder, DenseEncoder, SpladeEncoder, TokenEncoder
from sluice.encoders.foundation.errors import ConfigError, ModelError, SluiceError
from sluice.retrieval.stages.generative.rerankers import generative

WEIGHTS = "model.safetensors"
Damage = Callable[[Path], Any]


def settings(**values: Any) -> Damage:
    def change(folder: Path) -> None:
        facts = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**facts, **values}))

    return change


def tensors(change: Callable[[str, torch.Tensor], torch.Tensor]) -> Damage:
    def rewrite(folder: Path) -> None:
        state = load_file(folder / WEIGHTS)
        changed = {name: change(name, value) for name, value in state.items()}
        save_file(changed, folder / WEIGHTS, {"format": "pt"})

    return rewrite


def no_tokenizer(folder: Path) -> None:
    for file in [*folder.glob("tokenizer*"), *folder.glob("vocab*"), *folder.glob("special*")]:
        file.unlink()


def cut(folder: Path) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[: len(whole) // 2])


def header(text: str) -> Damage:
    start = len(text).to_bytes(8, "little")
    return lambda folder: (folder / WEIGHTS).write_bytes(start + text.encode() + bytes(8))


def half(name: str, value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.int8) if name.endswith("dense.weight") else value


def nan(name: str, value: torch.Tensor) -> torch.Tensor:
    return value * float("nan") if "layer.1.output.dense.weight" in name else value


def images(folder: Path) -> None:
    config = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        image_size=8, patch_size=4,
    )  # fmt: skip
    transformers.CLIPVisionModel(config).save_pretrained(folder)


def unknown_module(folder: Path) -> None:
    DenseEncoder.from_pretrained(folder).save_pretrained(folder)
    (folder / "sluice.json").unlink()
    modules = folder / "modules.json"
    modules.write_text(modules.read_text().replace('models.Pooling"', 'models.Pulling"'))


def wide_dense(folder: Path) -> None:
    DenseEncoder.from_pretrained(folder, projection=8).save_pretrained(folder)
    file = folder / "2_Dense" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "in_features": 31}))


def tokens(folder: Path) -> None:
    TokenEncoder.from_pretrained(folder, dim=8).save_pretrained(folder)


class Wrong(NamedTuple):
    damage: Damage
    says: str
    remedy: str
    opens: Callable[..., Any] = DenseEncoder.from_pretrained
    base: str = "Model"


def nothing(folder: Path) -> None:
    """The folder is whole, and of another role."""


QUANTISED = "take the model that they were made from"
WRONG = {
    "no tokenizer": Wrong(no_tokenizer, "no tokenizer", "expected one of tokenizer.json, vocab"),
    "tokenizer damaged": Wrong(
        lambda f: (f / "tokenizer.json").write_text("{"), "its tokenizer cannot be read",
        "copy tokenizer.json and what lies beside it again",
    ),
    "another's tokenizer": Wrong(
        settings(vocab_size=50), "the tokenizer has token id 117, the model's vocabulary is 50",
        "they do not belong together",
    ),
    "another's weights": Wrong(
        settings(hidden_size=16), r"is \[32\] in the weights", r"expected \[16\] by config.json"
    ),
    "a wide configuration": Wrong(
        settings(hidden_size=1 << 18, num_attention_heads=4), "describes a model of 618,.*,",
        "they do not belong together",
    ),
    "words without end": Wrong(
        settings(vocab_size=1 << 34), "describes a model of .*, and the weights are 2",
        "they do not belong together",
    ),
    "layers without end": Wrong(
        settings(num_hidden_layers=1 << 40), "num_hidden_layers is 1,099,.* the weights have 39",
        "they do not belong together",
    ),
    "sizes that no tensor has": Wrong(
        settings(intermediate_size=1 << 62), "cannot be loaded as AutoModel", ""
    ),
    "dimensions of modules": Wrong(
        wide_dense, r"2_Dense/config.json: in_features", "expected 32, the dimensions of"
    ),
    "no configuration": Wrong(
        lambda f: (f / "config.json").unlink(), "no config.json", "expected a transformers model"
    ),
    "unknown module": Wrong(
        unknown_module, "Sluice has no module Pulling", r"give the opened model as the encoder"
    ),
    "remote code": Wrong(
        settings(model_type="new", auto_map={"AutoModel": "m.M"}), "auto_map names code",
        "take a model of a type that transformers has",
    ),
    "unknown type": Wrong(
        settings(model_type="new"), "model_type is 'new', which transformers [0-9.]+ does not",
        "pip install -U transformers",
    ),
    "weights cut": Wrong(cut, f"{WEIGHTS}: not whole safetensors", "copy or fetch it again"),
    "weights empty": Wrong(
        lambda f: (f / WEIGHTS).write_bytes(b""), f"{WEIGHTS}: not whole", "copy or fetch it again"
    ),
    "header of another size": Wrong(
        lambda f: (f / WEIGHTS).write_bytes(b"\xff" * 40), f"{WEIGHTS}: not whole", "copy or fetch"
    ),
    "header of other things": Wrong(
        lambda f: (f / WEIGHTS).write_bytes(b"\x02" + bytes(7) + b"[]"), f"{WEIGHTS}: not whole",
        "copy or fetch",
    ),
    "header without an end": Wrong(
        header('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,1e999]}}'),
        f"{WEIGHTS}: not whole", "copy or fetch",
    ),
    "header as deep as a well": Wrong(
        header("[" * 200_000), f"{WEIGHTS}: not whole", "copy or fetch"
    ),
    "pointer of Git LFS": Wrong(
        lambda f: (f / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\n"),
        "a pointer of Git LFS", "git lfs pull",
    ),
    "pickle": Wrong(
        lambda f: (f / WEIGHTS).rename(f / "pytorch_model.bin"), "weights in a pickle",
        "sluice model import .* --trust-pickle",
    ),
    "llama.cpp's": Wrong(
        lambda f: (f / WEIGHTS).rename(f / "model.gguf"), "model.gguf is llama.cpp's",
        "take the model in transformers' layout",
    ),
    "numbers that are none": Wrong(
        tensors(nan), r"layer\.1\.output\.dense\.weight has numbers that are not finite",
        "take an earlier checkpoint",
    ),
    "bitsandbytes": Wrong(
        settings(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
        r"quantization_config \(bitsandbytes\)", QUANTISED,
    ),
    **{
        method: Wrong(
            settings(quantization_config={"quant_method": method, "bits": 4}),
            rf"quantization_config \({method}\)", rf"{QUANTISED}, with weights: int8 or int4",
        )
        for method in ("gptq", "awq", "compressed-tensors", "torchao", "fp8")
    },
    "quantised before methods had names": Wrong(
        settings(quantization_config={"load_in_8bit": True}),
        r"quantization_config \(load_in_8bit\)", QUANTISED,
    ),
    "unknown quantisation": Wrong(
        settings(quantization_config="new"), r"quantization_config \(new\)", QUANTISED
    ),
    "matrices of 8 bits": Wrong(
        tensors(half), r"dense\.weight is I8: the weights are quantised", QUANTISED
    ),
    "images": Wrong(
        images, "a CLIPVisionModel reads pixel_values", "take a model of texts"
    ),
    "token vectors as dense": Wrong(
        tokens, "a token encoder's folder", r"load it with TokenEncoder \(type: tokens\)"
    ),
    "dense as SPLADE": Wrong(
        nothing, "no masked-language-model head", "write `start: true`",
        SpladeEncoder.from_pretrained,
    ),
    "three labels as a reranker": Wrong(
        settings(id2label={"0": "a", "1": "b", "2": "c"}), "a classifier of 3 labels",
        "a reranker has one or two", CrossEncoder.from_pretrained, "ForSequenceClassification",
    ),
    "a filler of masks that should write": Wrong(
        nothing, "a BertForMaskedLM writes no text", "take a language model that does",
        lambda folder: generative(str(folder)), "ForMaskedLM",
    ),
    "a length beyond the model's": Wrong(
        nothing, "document_length: 10000", "the model takes 3 to 64 tokens",
        lambda folder: DenseEncoder.from_pretrained(folder, document_length=10_000),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("bases")
    kinds = ("Model", "ForMaskedLM", "ForSequenceClassification")
    return {kind: save_model(home / kind, kind) for kind in kinds}


@pytest.mark.parametrize("name", WRONG)
def test_one_error_with_what_to_do(name: str, bases: dict[str, Path], tmp_path: Path) -> None:
    wrong = WRONG[name]
    folder = Path(shutil.copytree(bases[wrong.base], tmp_path / "m"))
    wrong.damage(folder)
    kind: type[SluiceError] = ConfigError if "length" in name else ModelError
    with pytest.raises(kind, match=f"(?s){wrong.says}.*{wrong.remedy}") as raised:
        wrong.opens(folder)
    said = str(raised.value)
    assert "\n" not in said
    assert len(said) < 500 + 3 * len(str(folder))
