"""Model folders that name code: one error each, no question, and nothing of theirs runs."""

import builtins
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sluice.encoders import DenseEncoder
from sluice.encoders.dense.objects.sentence_transformer import SentenceTransformerEncoder
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files.remote_code import refuse_own_modules

MODULE = {"idx": 0, "name": "0", "path": ""}


@pytest.fixture
def model(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def asked(_: str = "") -> str:
        pytest.fail("a question on the terminal")

    monkeypatch.setattr(builtins, "input", asked)
    shutil.copytree(bert, tmp_path / "model")
    (tmp_path / "model" / "evil.py").write_text("raise SystemExit('it ran')")
    return tmp_path / "model"


def changed(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil"}},
            "runs no code of a model",
        ),
        ({"auto_map": {"AutoModel": "evil.Evil"}, "model_type": None}, "runs no code of a model"),
        ({"attn_implementation": "owner/kernel"}, "a kernel that would be fetched"),
        ({"text_config": {"_attn_implementation": "owner/kernel:x"}}, "a kernel that would be"),
    ],
)
def test_a_network_with_code(model: Path, values: dict[str, Any], message: str) -> None:
    changed(model / "config.json", **values)
    with pytest.raises(ModelError, match=message):
        DenseEncoder.from_pretrained(model)


def test_code_beside_a_known_network_is_left_alone(model: Path) -> None:
    changed(model / "config.json", auto_map={"AutoModel": "evil.Evil", "AutoConfig": "evil.Evil"})
    changed(model / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", None]})
    assert DenseEncoder.from_pretrained(model).encode_queries(["gold"]).shape[0] == 1


def test_an_adapter_over_a_model_elsewhere(model: Path) -> None:
    base = {"base_model_name_or_path": "owner/model", "peft_type": "LORA"}
    (model / "adapter_config.json").write_text(json.dumps(base))
    with pytest.raises(ModelError, match="merge both with peft"):
        DenseEncoder.from_pretrained(model)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "modules.json",
            [{**MODULE, "type": "evil.Evil"}],
            "not a module of sentence",
        ),
        ("modules.json", [{**MODULE, "type": "os.path"}], "not a module of sentence"),
        ("modules.json", [5], "not a module of sentence"),
        (
            "router_config.json",
            {"types": {"a": "evil.Evil"}},
            "not a module of sentence",
        ),
        ("2_Dense/config.json", {"activation_function": "os.getcwd"}, "one of torch.nn"),
        ("2_Dense/pytorch_model.bin", 1, "expected safetensors"),
        (
            "sentence_bert_config.json",
            {"model_args": {"attn_implementation": "evil/kernel"}},
            "a kernel that would be fetched",
        ),
        (
            "sentence_bert_config.json",
            {"model_args": {"use_safetensors": False}},
            "use_safetensors is not true",
        ),
    ],
)
def test_a_sentence_transformer_with_code(
    model: Path, file: str, content: Any, message: str
) -> None:
    (model / file).parent.mkdir(exist_ok=True)
    (model / file).write_text(json.dumps(content))
    with pytest.raises(ModelError, match=message):
        SentenceTransformerEncoder.from_pretrained(model)


def test_its_own_modules_are_its_own(model: Path) -> None:
    modules = [{**MODULE, "type": "sentence_transformers.models.Transformer"}]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "2_Dense").mkdir()
    dense = {"activation_function": "torch.nn.modules.activation.Tanh"}
    (model / "2_Dense" / "config.json").write_text(json.dumps(dense))
    refuse_own_modules(model)


def test_pickles_that_nothing_reads_are_no_reason_to_refuse_a_model(model: Path) -> None:
    assert (model / "model.safetensors").exists()
    for name in ("pytorch_model.bin", "training_args.bin"):  # as many models of the hub have them
        (model / name).write_bytes(b"x")
    refuse_own_modules(model)
    (model / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="expected safetensors"):
        refuse_own_modules(model)
