"""Checks the concepts of an encoder that is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.splade.concepts.head import checked_settings
from sluice.encoders.splade.concepts.names import read_concepts

if TYPE_CHECKING:
    from sluice.retrieval.config.sections import TrainingSection


def check_concepts(section: TrainingSection, prefix: str) -> None:
    """Raise ``ConfigError`` for a list of concepts that cannot be, or a loss over words."""
    spec, where = section.encoder, f"{prefix}encoder"
    if spec.get("type") != "concepts":
        return
    if section.loss["type"] == "masked_language":
        raise ConfigError(
            f"{prefix}loss: masked_language hides words of the vocabulary, and a concept encoder "
            "has none; take a loss over scores, such as info_nce"
        )
    try:
        checked_settings(*(spec.get(key) for key in ("read", "scale", "threshold")))
        if spec.get("vocabulary") is not None:
            read_concepts(spec["vocabulary"])
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from None
