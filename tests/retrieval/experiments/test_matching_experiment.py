"""Rankers over token vectors from YAML: trained, staged, searched, explained, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Call
from small_world import write_beir
from static_embeddings import save_static

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.model_files.registry import open_encoder
from sluice.retrieval import load_pipeline
from sluice.retrieval.config.sections import TrainConfig, checked
from sluice.retrieval.experiments.training.checks import check_training

TRAINER = {"max_steps": 3, "per_device_train_batch_size": 4, "learning_rate": 1.0e-2}
MINED = {"type": "mined", "retriever": "bm25", "per_query": 2, "mode": "naive"}


def settings(folder: Path, static: Path, bert: Path) -> dict[str, Any]:
    return {
        "dataset": str(write_beir(folder / "data")), "output": str(folder / "out"),
        "train": {
            "light": {
                "encoder": {"type": "knrm", "model": str(static), "train_vectors": True},
                "loss": "localized_softmax", "negatives": MINED, "trainer": TRAINER,
                "head_learning_rate": 0.05, "evaluate": {"every": 2, "queries": 4},
            },
            "grams": {
                "encoder": {"type": "conv_knrm", "model": str(bert), "vectors": "table"},
                "loss": "margin_mse", "negatives": MINED, "trainer": TRAINER,
                "teacher": {"type": "bm25"},
            },
            "pyramid": {
                "encoder": {"type": "pyramid", "model": str(bert), "head": "similarity"},
                "loss": {"type": "anchored_hinge"}, "negatives": MINED,
                "tuning": {"type": "lora", "rank": 2}, "trainer": {**TRAINER, "max_steps": 1},
            },
        },
        "retrievers": {"bm25": {"encoder": {"type": "bm25"}}},
        "rerankers": {
            "knrm": {"type": "knrm", "model": "light"},
            "grams": {"type": "conv_knrm", "model": "grams"},
            "read": {"type": "pyramid", "model": "pyramid"},
        },
        "pipelines": {
            "first": "bm25", "light": "bm25 >> knrm(depth=20)",
            "both": "bm25 % 30 >> knrm(depth=20) >> grams(depth=9, interpolate=0.5) "
                    ">> read(depth=5)",
        },
        "evaluate": {"measures": ["nDCG@10"], "baseline": "first", "latency_queries": 0},
    }  # fmt: skip


def test_a_journey(sluice: Call, tmp_path: Path, bert: Path) -> None:
    save_static(tmp_path / "static")
    facts = settings(tmp_path, tmp_path / "static", bert)
    file, output = tmp_path / "x.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    code, _, err = sluice("run", file)
    assert code == 0, err
    systems = json.loads((output / "results.json").read_text())["systems"]
    assert {each["name"] for each in systems} == {"first", "light", "both"}
    card = (output / "models" / "light" / "README.md").read_text()
    assert "from sluice.encoders.rerankers.matching.knrm import KNRM\n" in card
    assert "# KNRM ranker trained with localized_softmax" in card
    assert "does not make the same scores" in card
    card = (output / "models" / "pyramid" / "README.md").read_text()
    assert "| tokens read | 64 of a pair |" in card
    pipeline = load_pipeline(output, "light")
    found = pipeline.search("gold river", 5)
    ranker = open_encoder(output / "models" / "light")
    texts = [f"{hit.title} {hit.text}".strip() for hit in found]
    expected = ranker.score([("gold river", text) for text in texts])
    assert [hit.score for hit in found] == pytest.approx(expected.tolist(), abs=1e-5)
    assert len(pipeline.search("gold river", 1000)) <= 40
    pipeline.save(tmp_path / "saved")
    assert load_pipeline(tmp_path / "saved").search("gold river", 5) == found
    code, shown, err = sluice("explain", output, "gold river", "--pipeline", "both", "-k", 2)
    assert code == 0, err
    assert "read(depth=5)" in shown
    assert sluice("verify", output)[0] == 0
    assert open_encoder(output / "models" / "pyramid").shape.lower_layers == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"tuning": {"type": "lora"}},
            "tuning.type: lora: is for transformers; the vectors that it",
        ),
        ({"negatives": None}, "negatives: missing: a cross_encoder learns from each query's own"),
        (
            {"encoder": {"type": "pyramid"}, "tuning": {"type": "iaa"}, "loss": "anchored_hinge"},
            "tuning.type: iaa: connects all layers",
        ),
        ({"encoder": {"kernel": 5}}, "encoder.kernel: unknown key; .* did you mean 'kernels'"),
        ({"encoder": {"kernels": "many"}}, "encoder.kernels: 'many'; expected a whole number"),
        ({"encoder": {"vectors": "tables"}}, "did you mean 'table'"),
    ],
)
def test_a_training_run_that_cannot_be_is_refused_before(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    bm25 = {**MINED, "retriever": {"encoder": {"type": "bm25"}}}
    base = {
        "dataset": "anywhere", "output": str(tmp_path), "trainer": TRAINER, "negatives": bm25,
        "loss": "localized_softmax", **change,
        "encoder": {"type": "knrm", "model": "m", **change.get("encoder", {})},
    }  # fmt: skip
    with pytest.raises(ConfigError, match=says):
        check_training(checked(base, TrainConfig), "")
