"""Gaussian encoders from YAML: trained by losses and teachers, indexed, fused, explained."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import Call
from small_world import write_beir

from sluice.encoders import GaussianEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import load_pipeline
from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig, checked
from sluice.retrieval.experiments.checks import check_experiment
from sluice.retrieval.experiments.training.checks import check_training

TRAINER = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1.0e-3}
MINED = {"type": "mined", "retriever": "bm25", "per_query": 2, "mode": "naive"}


def settings(folder: Path, bert: Path) -> dict[str, Any]:
    encoder = {"type": "gaussian", "model": str(bert), "query_length": 16}
    return {
        "dataset": str(write_beir(folder / "data")), "output": str(folder / "out"),
        "train": {
            "spread": {
                "encoder": encoder, "loss": {"type": "info_nce", "temperature": 1.0},
                "negatives": MINED, "head_learning_rate": 0.05, "trainer": TRAINER,
            },
            "taught": {
                "encoder": {**encoder, "model": "spread"}, "loss": "lambda_distil",
                "negatives": MINED, "teacher": "bm25", "gradient_cache": 2, "trainer": TRAINER,
            },
        },
        "retrievers": {
            "bm25": {"encoder": {"type": "bm25"}},
            "spread": {"encoder": {"type": "gaussian", "model": "spread"}},
            "graph": {
                "encoder": {"type": "gaussian", "model": "taught"},
                "index": {"type": "faiss", "factory": "HNSW32"},
                "encoding": {"cache": str(folder / "cache")},
            },
        },
        "pipelines": {"spread": "spread", "graph": "graph", "both": "bm25 | spread"},
        "evaluate": {"measures": ["nDCG@10"], "baseline": "spread", "latency_queries": 0},
    }  # fmt: skip


def test_a_journey(sluice: Call, tmp_path: Path, bert: Path) -> None:
    facts = settings(tmp_path, bert)
    file, output = tmp_path / "x.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    code, _, err = sluice("run", file)
    assert code == 0, err
    systems = json.loads((output / "results.json").read_text())["systems"]
    assert {each["name"] for each in systems} == {"spread", "graph", "both"}
    first, second = (
        GaussianEncoder.from_pretrained(output / "models" / name) for name in ("spread", "taught")
    )
    variances = first.gaussians(first.encode_queries(["gold", "the river"]), "query").variances
    assert np.ptp(variances) > 0.01  # they were all alike before training
    assert first.fingerprint != second.fingerprint
    card = (output / "models" / "spread" / "README.md").read_text()
    assert "from sluice.encoders import GaussianEncoder\n" in card
    assert "sentence_transformers" not in card
    assert len(load_pipeline(output, "both").search("gold river", 5)) == 5
    for words in (["verify", output / "retrievers" / "spread"],
                  ["explain", output, "gold river", "--pipeline", "both", "-k", 2]):  # fmt: skip
        code, shown, err = sluice(*words)
        assert code == 0, err
    assert re.search(r"spread .*\(uncertainty -\d\.\d+\)", shown)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"encoder": {"projection": {"dim": 0}}}, "encoder.projection.dim"),
        ({"encoder": {"start_varianc": 1.0}}, "did you mean 'start_variance'"),
    ],
)
def test_a_training_run_that_cannot_be_is_refused_before(
    bert: Path, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    base = {
        "dataset": "anywhere", "output": str(tmp_path), "trainer": TRAINER, "loss": "info_nce",
        **change, "encoder": {"type": "gaussian", "model": str(bert), **change.get("encoder", {})},
    }  # fmt: skip
    with pytest.raises(ConfigError, match=says):
        check_training(checked(base, TrainConfig), "")


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ({"type": "inverted"}, "holds sparse vectors; a gaussian encoder takes flat, faiss"),
        ({"type": "flat", "metric": "cosine"}, "index.metric: cosine: .* metric: ip"),
        ({"type": "funnel", "dimensions": 8}, "index.dimensions: 8"),
    ],
)
def test_an_index_of_another_score_is_refused_before(
    bert: Path, tmp_path: Path, index: dict[str, Any], says: str
) -> None:
    facts = settings(tmp_path, bert)
    facts["retrievers"]["graph"]["index"] = index
    with pytest.raises(ConfigError, match=says):
        check_experiment(checked(facts, ExperimentConfig))
