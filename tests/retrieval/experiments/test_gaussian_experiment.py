"""Gaussian encoders from YAML: trained by losses and teachers, indexed, fused, explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kinds import Models, experiment

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig, checked
from sluice.retrieval.experiments.checks import check_experiment
from sluice.retrieval.experiments.training.checks import check_training

TRAINER = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1.0e-3}


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
    tmp_path: Path, index: dict[str, Any], says: str, models: Models
) -> None:
    facts = experiment("gaussian", tmp_path, models)
    facts["retrievers"]["graph"]["index"] = index
    with pytest.raises(ConfigError, match=says):
        check_experiment(checked(facts, ExperimentConfig))
