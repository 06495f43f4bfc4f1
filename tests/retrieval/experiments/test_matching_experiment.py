"""Rankers over token vectors from YAML: trained, staged, searched, explained, and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kinds import Models, experiment

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig, checked
from sluice.retrieval.experiments.checks import check_experiment
from sluice.retrieval.experiments.training.checks import check_training

TRAINER = {"max_steps": 3, "per_device_train_batch_size": 4, "learning_rate": 1.0e-2}
MINED = {"type": "mined", "retriever": "bm25", "per_query": 2, "mode": "naive"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tuning": {"type": "lora"}}, "tuning: is for transformers; the vectors of a knrm stay"),
        ({"freeze": {"layers": 1}}, "freeze: is for transformers"),
        ({"loss": "qbd"}, "qbd learns from vectors of single texts, and a knrm has none"),
        ({"loss": "angle"}, "angle trains dense"),
        ({"head_learning_rate": 0.1}, "head_learning_rate: nothing but the head of a knrm"),
        ({"sparsity": {"query": {"type": "l1", "weight": 1.0}}}, "sparsity: is for splade"),
        ({"scoring": "max_sim"}, "scoring: is for encoders of token vectors"),
        ({"negatives": None}, "negatives: missing: a cross_encoder learns from each query's own"),
        (
            {"encoder": {"type": "drmm", "train_vectors": True}},
            "encoder.train_vectors: drmm counts similarities",
        ),
        (
            {"encoder": {"type": "pyramid"}, "tuning": {"type": "iaa"}, "loss": "anchored_hinge"},
            "tuning.type: iaa connects all layers",
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


def test_a_reranker_does_not_train(tmp_path: Path, models: Models) -> None:
    facts = experiment("matching", tmp_path, models)
    facts["rerankers"]["knrm"]["train_vectors"] = True
    with pytest.raises(ConfigError, match=r"rerankers\.knrm\.train_vectors: is for training"):
        check_experiment(checked(facts, ExperimentConfig))
