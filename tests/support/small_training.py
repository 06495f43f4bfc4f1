"""The section of a short training over the small world, and what is refused in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.sections import TrainConfig, checked
from sluice.retrieval.experiments.training.checks import check_training

TRAINER = {
    "max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 1.0e-3, "logging_steps": 1,
}  # fmt: skip
INFO = {"type": "info_nce"}
BM25 = {"encoder": {"type": "bm25"}, "index": {"type": "inverted"}}
MINED = {"type": "mined", "retriever": BM25, "per_query": 1, "mode": "naive"}


def short_training(folder: Path, model: Path, **changes: Any) -> dict[str, Any]:
    """Write the small world and return a dense training over it."""
    return {
        "dataset": str(write_beir(folder / "data")),
        "output": str(folder / "out"),
        "encoder": {"type": "dense", "model": str(model)},
        "loss": INFO,
        "trainer": TRAINER,
        **changes,
    }


def refused(config: dict[str, Any], message: str) -> None:
    """Check that a training is refused before any work."""
    with pytest.raises(ConfigError, match=message):
        check_training(checked(config, TrainConfig), "")
