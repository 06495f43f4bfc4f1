"""Checks the training of an encoder that writes spans of documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.sections import TrainingSection

if TYPE_CHECKING:
    from sluice.training.losses.base import LossBase


def check_spans(section: TrainingSection, loss: LossBase, prefix: str) -> None:
    """Raise ``ConfigError`` for settings that a loss of spans does not read."""
    if loss.encoders != ("seal",):
        return
    name = section.loss["type"]
    for key in ("negatives", "teacher", "gradient_cache", "head_learning_rate", "answered"):
        if getattr(section, key) is not None:
            raise ConfigError(
                f"{prefix}{key}: {name} learns from the text of positives alone; leave it out"
            )
