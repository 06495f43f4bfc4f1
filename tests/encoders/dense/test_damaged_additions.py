"""What lies beside a model's weights (adapters, pair heads, routes) is refused where it is ill."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sluice.encoders import TowerEncoder
from sluice.encoders.dense.encoder import DenseEncoder
from sluice.encoders.dense.error_adapter import PairHead
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.splade.encoder import SpladeEncoder
from sluice.encoders.tuning.tune import tune


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


@pytest.fixture
def tuned(bert: Path, tmp_path: Path) -> Path:
    encoder = DenseEncoder.from_pretrained(bert)
    tune(encoder, {"type": "prefix", "tokens": 4})
    encoder.save_pretrained(tmp_path / "tuned")
    return tmp_path / "tuned"


@pytest.mark.parametrize(
    ("tuning", "words"),
    [
        ({"type": "prefix", "tokens": 10**12}, "tokens is 1000000000000"),
        ({"type": "lora", "rank": 10**12}, "known: adapter, gated_prefix, iaa, prefix"),
        ({"type": "os:system"}, "never runs code that it names"),
    ],
)
def test_an_adapter_takes_no_memory_that_its_file_does_not_fill(
    tuned: Path, tuning: dict[str, Any], words: str
) -> None:
    edit(tuned / "adapter" / "adapter.json", lambda found: found.update(tuning=tuning))
    with pytest.raises(ModelError, match=words):
        open_encoder(tuned)


def test_an_adapter_of_whole_numbers(tuned: Path) -> None:
    file = tuned / "adapter" / "adapter.safetensors"
    save_file({key: value.to(torch.int64) for key, value in load_file(file).items()}, file)
    with pytest.raises(ModelError, match=r"torch\.int64, expected floats"):
        open_encoder(tuned)


@pytest.mark.parametrize("facts", [{"dim": 10**9, "hidden": 10**9}, {"dim": 9}])
def test_a_pair_head_of_another_size(tmp_path: Path, facts: dict[str, int]) -> None:
    PairHead(8, 4).save(tmp_path)
    edit(tmp_path / "pair_head" / "config.json", lambda found: found.update(facts))
    with pytest.raises(ModelError, match=r"does not fit its config\.json"):
        PairHead.load(tmp_path)


def test_a_pair_head_of_whole_numbers(tmp_path: Path) -> None:
    PairHead(8, 4).save(tmp_path)
    file = tmp_path / "pair_head" / "model.safetensors"
    save_file({key: value.to(torch.int8) for key, value in load_file(file).items()}, file)
    with pytest.raises(ModelError, match="float tensors"):
        PairHead.load(tmp_path)


def test_routes_that_lead_nowhere_are_named_in_their_own_folder(bert: Path, tmp_path: Path) -> None:
    side = {"type": "dense", "model": str(bert)}
    TowerEncoder.from_pretrained(query=side, document=side).save_pretrained(tmp_path / "towers")
    shutil.copytree(tmp_path / "towers", tmp_path / "empty")
    edit(tmp_path / "empty" / "router_config.json", lambda f: f["structure"].update(query=[]))
    shutil.rmtree(tmp_path / "towers" / "query")
    for name in ("towers", "empty"):
        with pytest.raises(ModelError, match=rf"{name}/router_config\.json: the route query"):
            open_encoder(tmp_path / name)


def test_query_weights_that_are_no_numbers(masked_bert: Path, tmp_path: Path) -> None:
    encoder = SpladeEncoder.from_pretrained(masked_bert, query_model="idf")
    encoder.save_pretrained(tmp_path / "idf")
    file = next((tmp_path / "idf" / "query").glob("*.safetensors"))
    save_file({"weight": load_file(file)["weight"] * float("nan")}, file)
    with pytest.raises(ModelError, match="not a finite number"):
        open_encoder(tmp_path / "idf")
