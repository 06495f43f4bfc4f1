"""Rankers over token vectors from YAML: trained, staged, searched, explained, and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.sections import TrainConfig, checked
from sluice.retrieval.experiments.training.checks import check_training

TRAINER = {"max_steps": 3, "per_device_train_batch_size": 4, "learning_rate": 1.0e-2}
MINED = {"type": "mined", "retriever": "bm25", "per_query": 2, "mode": "naive"}


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
