"""Checks what tunes an encoder whose lower layers read two texts apart."""

from __future__ import annotations

from sluice.encoders.foundation.errors import ConfigError


def check_of_pyramid(kind: str, where: str) -> None:
    """Raise ``ConfigError`` for a type of tuning that needs one pass through all layers."""
    if kind == "iaa":
        raise ConfigError(
            f"{where}.type: iaa connects all layers in one pass, and a pyramid ranker runs the "
            "lower ones for each text alone; take adapter or lora"
        )
