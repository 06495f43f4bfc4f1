"""A model with three heads trained from YAML, and what its training refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import Call
from small_world import documents, write_beir

from sluice.encoders import ThreeHeadEncoder
from sluice.encoders.own.three_heads.encoder import HeadEncoder


@pytest.fixture
def config(tmp_path: Path, bert: Path) -> dict[str, Any]:
    return {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        "encoder": {
            "type": "three_heads", "model": str(bert), "head": "tokens", "dim": 8,
            "query_length": 12, "document_length": 24,
        },
        "loss": {"type": "three_heads", "loss": {"type": "info_nce", "temperature": 0.1}},
        "trainer": {
            "max_steps": 5, "per_device_train_batch_size": 12, "learning_rate": 1.0e-3,
            "logging_steps": 1,
        },
    }  # fmt: skip


@pytest.mark.thorough
def test_all_heads_are_trained_and_one_is_measured(
    config: dict[str, Any], tmp_path: Path, bert: Path, sluice: Call
) -> None:
    config |= {
        "head_learning_rate": 1.0e-2,
        "evaluate": {"measures": ["nDCG@10"], "every": 5, "margin": 0},
    }
    start = ThreeHeadEncoder(HeadEncoder.from_pretrained(bert, head="dense", dim=8).trunk)
    texts = [document.full_text for document in documents(6)]
    before = start.dense.encode_documents(texts)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    code, out, err = sluice("train", tmp_path / "mine.yaml")
    assert code == 0, err
    assert out.startswith("encoder with three heads from bert, trained with three_heads")
    lines = (tmp_path / "out" / "training" / "metrics.jsonl").read_text().splitlines()
    journal = [json.loads(line) for line in lines]
    losses = [line["loss"] for line in journal if "loss" in line]
    assert losses[-1] < losses[0]
    assert any("eval_nDCG@10" in line for line in journal)
    trained = ThreeHeadEncoder.from_pretrained(tmp_path / "out" / "model")
    found = trained.dense.encode_documents(texts)
    # Training changed its own copy of the network: one that is open elsewhere stays as it is.
    np.testing.assert_array_equal(start.dense.encode_documents([*texts, "new"])[:-1], before)
    assert np.abs(found - before).max() > 1e-3
    assert trained.tokens.dim == 8
    assert trained.sparse.encode_documents(texts).nnz > 0
    assert "three_heads" in (tmp_path / "out" / "model" / "README.md").read_text()
