"""Checks a training run's ``trainer`` section, by making the arguments as training will."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.other_names import TRAINER_NAMES
from sluice.retrieval.config.sections import TrainingSection
from sluice.retrieval.experiments.training.dev_evaluation import dev_measure

LOWEST = {  # of the numbers in `trainer`
    "gradient_accumulation_steps": 1,
    "per_device_train_batch_size": 1,
    "max_grad_norm": 0,
    "weight_decay": 0,
}
ABOVE_ZERO = ("learning_rate", "num_train_epochs")
# What `trainer.report_to` may name, with its package where the two differ.
PACKAGES = {"azure_ml": "azureml-mlflow", "comet_ml": "comet_ml", "flyte": "flytekit"}


def check_trainer(section: TrainingSection, prefix: str) -> None:
    """Make the trainer's arguments as training will, and check what they let pass."""
    from sluice.training.loop.arguments import training_arguments

    for key in section.trainer:
        if (name := TRAINER_NAMES.get(key, key)) != key:
            raise ConfigError(f"{prefix}trainer.{key}: unknown key; here it is called {name}")
    _check_reporting(section.trainer.get("report_to"), f"{prefix}trainer.report_to")
    try:
        with tempfile.TemporaryDirectory() as folder:
            training_arguments(
                section.trainer,
                output=Path(folder),
                seed=0,
                evaluate_every=section.evaluate.every if section.evaluate else None,
                evaluated=section.evaluate is not None,
                metric=dev_measure(section.evaluate) if section.evaluate else None,
            )
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from None
    for key, value in section.trainer.items():
        where = f"{prefix}trainer.{key}"
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{where}: {value!r}; expected a finite number")
        if value is not None and key in LOWEST and value < LOWEST[key]:
            raise ConfigError(f"{where}: {value!r}; expected {LOWEST[key]} or more")
        if value is not None and key in ABOVE_ZERO and value <= 0:
            raise ConfigError(f"{where}: {value!r}; expected a number above 0")


def _check_reporting(report_to: Any, where: str) -> None:
    """Check that what a run reports to is known and installed; the Trainer looks at its start."""
    from transformers.integrations import get_reporting_integration_callbacks, integration_utils

    names = report_to if isinstance(report_to, list) else [report_to]
    for name in names:
        if name in (None, "none", "all", "tensorboard"):  # the trainer's arguments know these
            continue
        try:
            get_reporting_integration_callbacks([name])
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
        package = PACKAGES.get(name, name)
        short = {"azure_ml": "azureml", "comet_ml": "comet"}.get(name, package)
        available = getattr(integration_utils, f"is_{short}_available", None)
        if available is not None and not available():
            raise ConfigError(f"{where}: {name} is not installed: pip install {package}")
