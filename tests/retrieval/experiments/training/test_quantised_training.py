"""Training beside weights of 8 and 4 bits, from YAML to a search; alone they are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_training import refused, short_training

from sluice.encoders import DenseEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.model_files.weights.quantised import weights_of
from sluice.retrieval import load_pipeline, run, train
from sluice.training.fit_encoder import fit
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.protocol import Example


def coded(bert: Path, weights: str) -> dict[str, Any]:
    return {"type": "dense", "model": str(bert), "weights": weights}


@pytest.mark.thorough
@pytest.mark.parametrize(("weights", "tuning"), [("int4", "lora"), ("int8", "adapter")])
def test_adapters_train_beside_codes(weights: str, tuning: str, tmp_path: Path, bert: Path) -> None:
    section = {"tuning": {"type": tuning}, "encoder": coded(bert, weights)}
    config = short_training(tmp_path, bert, **section)
    trainer = {**config["trainer"], "learning_rate": 5e-3, "max_steps": 8}
    trainer["per_device_train_batch_size"] = 8  # all, so that steps can be compared
    folder = train({**config, "trainer": trainer})
    lines = (tmp_path / "out" / "training" / "metrics.jsonl").read_text().splitlines()
    losses = [each["loss"] for each in map(json.loads, lines) if "loss" in each]
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    encoder = open_encoder(folder)
    assert weights_of(encoder.module) == ("float32" if tuning == "lora" else weights)
    start = DenseEncoder.from_pretrained(bert, weights=weights)  # type: ignore[arg-type]
    assert np.abs(encoder.encode_queries(["gold"]) - start.encode_queries(["gold"])).max() > 1e-3


def test_an_experiment_indexes_and_searches_with_codes(tmp_path: Path, bert: Path) -> None:
    data = short_training(tmp_path, bert)["dataset"]
    types = ("float32", "int8")
    table, _ = run(
        {
            "dataset": data, "output": str(tmp_path / "exp"), "evaluate": {"latency_queries": 0},
            "retrievers": {each: {"encoder": coded(bert, each)} for each in types},
        }
    )  # fmt: skip
    assert "int8" in str(table)
    first, coded_one = (load_pipeline(tmp_path / "exp", each) for each in types)
    both = [[hit.score for hit in each.search("gold river", k=500)] for each in (first, coded_one)]
    assert len(both[1]) == len(both[0]) > 20
    assert 0 < np.abs(np.subtract(*both)).max() < 0.05


def test_codes_are_not_trained_alone(tmp_path: Path, bert: Path) -> None:
    says = r"weights: int8: the matrices are codes, which cannot be trained; add tuning: \{type:"
    refused(short_training(tmp_path, bert, encoder=coded(bert, "int8")), says)
    encoder = DenseEncoder.from_pretrained(bert, weights="int8")
    with pytest.raises(ConfigError, match=says):
        fit(encoder, [Example("gold", ["gold river"])], InfoNCE(), output=tmp_path / "fit")
