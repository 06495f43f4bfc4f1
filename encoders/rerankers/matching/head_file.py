"""Writes and reads the weights of a ranker's head."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from sluice.encoders.foundation.errors import ModelError

WEIGHTS = "head.safetensors"


def save_head(head: nn.Module, folder: Path) -> None:
    """Write a head's weights into a ranker's folder."""
    from safetensors.torch import save_file

    weights = {name: value.detach().cpu() for name, value in head.state_dict().items()}
    save_file(weights, folder / WEIGHTS, {"format": "pt"})


def fill_head(head: nn.Module, folder: Path) -> None:
    """Fill a head; ``ModelError`` where its file is missing, damaged, or of another head."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = folder / WEIGHTS
    if not file.exists():
        raise ModelError(f"{file}: missing; it holds the ranker's head: train the model again")
    try:
        head.load_state_dict(load_file(file))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise ModelError(f"{file}: does not fit the settings beside it: {error}") from error
    for name, values in head.state_dict().items():
        if not torch.isfinite(values).all():
            raise ModelError(
                f"{file}: {name} has values that are not finite, so every score would be NaN; take "
                "the folder from its source again, or train the model again"
            )
