"""Checks what tunes an encoder whose layers exist several times."""

from __future__ import annotations

from typing import Final

from sluice.encoders.foundation.errors import ConfigError

OF_EXPERTS: Final = ("experts", "bitfit", "ln_tuning")  # types that add nothing to layers


def check_of_experts(kind: str, where: str) -> None:
    """Raise ``ConfigError`` for a type of tuning that adds parts to linear layers."""
    if kind not in OF_EXPERTS:
        raise ConfigError(
            f"{where}.type: {kind} adds parts to layers that exist several times; an encoder with "
            f"experts takes {', '.join(OF_EXPERTS)}"
        )
