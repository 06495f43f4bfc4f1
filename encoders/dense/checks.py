"""What a dense encoder refuses or warns of when it is opened."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.transformer.decoder_attention import is_causal

log = logging.getLogger("sluice")


def warn_of_decoder(network: Any, folder: Path) -> None:
    """Log that a decoder without a pooling of its own is pooled by the mean."""
    if is_causal(network):
        log.warning(
            "%s: tokens of a %s see only those before them, and its folder names no pooling: the "
            "mean is taken; pooling: last suits decoders that were trained as encoders, "
            "attention: bidirectional those that will be", folder, type(network).__name__,
        )  # fmt: skip


def check_top_layers(top: Any, layers: int, *, exported: bool) -> None:
    """Raise ``ConfigError`` for a number of layers to pool that a model does not have."""
    if whole_number(top, "top_layers", 1) > layers:
        raise ConfigError(f"top_layers: {top}; the model has {layers}, expected 1 to {layers}")
    if top > 1 and exported:
        raise ConfigError("top_layers: an exported graph returns the last alone; backend: torch")


def dims_noted(sidecar: Mapping[str, Any], folder: Path) -> tuple[int, ...]:
    """Return the prefixes of vectors that a folder was trained for."""
    dims = sidecar.get("matryoshka_dims", [])
    if not isinstance(dims, list) or not all(type(dim) is int for dim in dims):
        raise ModelError(f"{folder}: matryoshka_dims is {dims!r}, expected numbers of dimensions")
    return tuple(dims)
