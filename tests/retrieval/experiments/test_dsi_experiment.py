"""DSI from YAML: trained, indexed, fused, explained, changed; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Call
from small_world import WordEncoder, documents, write_beir
from tiny_generators import save_t5

from sluice.encoders import DsiEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError, ModelError
from sluice.indexing import FlatIndex, FmIndex, TrieIndex
from sluice.retrieval import Document, Passages, Retriever, load_pipeline
from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig, checked
from sluice.retrieval.experiments.checks import check_experiment
from sluice.retrieval.experiments.training.checks import check_training


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_t5(tmp_path_factory.mktemp("models") / "t5")


def settings(folder: Path, model: Path, bert: Path) -> dict[str, Any]:
    trainer = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1.0e-3}
    return {
        "dataset": str(write_beir(folder / "data")), "output": str(folder / "out"),
        "train": {
            "writer": {
                "encoder": {"type": "dsi", "model": str(model), "ids": "semantic", "beams": 6,
                            "ids_by": {"type": "dense", "model": str(bert)}},
                "examples": {"type": "indexing", "words": 8, "phrases": 1, "judgements": True},
                "loss": "identifiers", "trainer": trainer,
                "evaluate": {"measures": ["nDCG@10"], "margin": 0},
            },
        },
        "retrievers": {
            "bm25": {"encoder": {"type": "bm25"}},
            "dsi": {"encoder": {"type": "dsi", "model": "writer"}, "index": {"type": "trie"}},
        },
        "pipelines": {"dsi": "dsi", "both": "bm25 | dsi % 5"},
        "evaluate": {"measures": ["nDCG@10"], "baseline": "dsi", "latency_queries": 0},
    }  # fmt: skip


def test_a_journey(sluice: Call, tmp_path: Path, t5: Path, bert: Path) -> None:
    file, output = tmp_path / "x.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(settings(tmp_path, t5, bert), sort_keys=False), "utf-8")
    code, planned, err = sluice("config", "check", file)
    assert code == 0, err
    assert planned.count("time unknown") == 4, planned  # nobody knows how long a model writes
    code, _, err = sluice("run", file)
    assert code == 0, err
    systems = json.loads((output / "results.json").read_text())["systems"]
    assert {each["name"] for each in systems} == {"dsi", "both"}
    assert "DsiEncoder" in (output / "models" / "writer" / "README.md").read_text()
    index = Retriever.open(output / "retrievers" / "dsi").index
    assert isinstance(index, TrieIndex)
    assert len(index) == 40
    assert len(load_pipeline(output, "both").search("gold river", 5)) == 5
    for words in (["verify", output / "retrievers" / "dsi"],
                  ["search", output, "gold", "--pipeline", "dsi", "-k", 100],
                  ["explain", output, "gold river", "--pipeline", "dsi", "-k", 2]):  # fmt: skip
        code, out, err = sluice(*words)
        assert code == 0, err
    print(out)
