"""Static embeddings from YAML to results: trained, indexed, searched, as a tower of queries."""

from pathlib import Path
from typing import Any

import pytest
from static_embeddings import save_static

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.sections import TrainConfig, checked
from sluice.retrieval.experiments.training.checks import check_training

TRAINER = {"max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 0.05}
LOSS = {"loss": {"type": "info_nce"}, "trainer": {**TRAINER, "logging_steps": 1}}


def test_what_static_embeddings_have_not(tmp_path: Path) -> None:
    save_static(tmp_path / "m")
    base: dict[str, Any] = {
        "dataset": "anywhere", "output": str(tmp_path), **LOSS,
        "encoder": {"type": "static", "model": str(tmp_path / "m")},
    }  # fmt: skip
    check_training(checked(base, TrainConfig), "")
    for change, words in (
        ({"tuning": {"type": "lora"}}, "tuning.type: lora: a static encoder has no network"),
        ({"encoder": {**base["encoder"], "pooling": "mean"}}, r"encoder\.pooling"),
        ({"encoder": {**base["encoder"], "projection": 0}}, r"encoder\.projection"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_training(checked({**base, **change}, TrainConfig), "")
