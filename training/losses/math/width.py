"""The width of an encoder's vectors."""

from __future__ import annotations

from typing import Any

import torch

from sluice.encoders.encoder import hooks_of


def width_of(encoder: Any) -> int:
    """Return how many dimensions an encoder's vectors have."""
    known = hooks_of(encoder).dim
    if isinstance(known, int):
        return known
    device = next(encoder.module.parameters()).device
    features = {k: v.to(device) for k, v in encoder.tokenize(["width"], "query").items()}
    with torch.no_grad(), torch.random.fork_rng():
        return int(encoder.embed(features, "query").shape[-1])
