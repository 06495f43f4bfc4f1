"""What encoders require of the network that they are built on, and the modules they add to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from sluice.encoders.foundation.errors import ModelError


def refuse_two_stacks(network: Any, folder: Path, encoder: str) -> None:
    """Raise ``ModelError`` for a network of an encoder and a decoder."""
    if network.config.is_encoder_decoder:
        raise ModelError(
            f"{folder}: {type(network).__name__} has an encoder and a decoder; a {encoder} needs "
            "one stack of layers"
        )


def with_modules(model: nn.Module, **added: nn.Module | None) -> nn.ModuleDict:
    """Return a network as ``model`` and the modules added to it, None left out.

    A new module is in training mode; all get the network's.
    """
    modules = {name: module for name, module in added.items() if module is not None}
    return nn.ModuleDict({"model": model, **modules}).train(model.training)
