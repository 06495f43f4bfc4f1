"""Parts of an encoder that are not trained: its embeddings and its lowest layers."""

from __future__ import annotations

from typing import Any

from torch import nn

from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.layers import layer_list


def freeze(encoder: Any, *, layers: int = 0, embeddings: bool = False) -> list[str]:
    """Freeze the lowest ``layers`` of an encoder, with ``embeddings`` also its embeddings.

    Returns the names of the parameters, as ``encoder.module`` names them, that no longer need a
    gradient. A vocabulary product that is tied to the word embeddings is frozen with them. Of
    separate towers it freezes both. Raises ``ConfigError`` for more layers than there are.
    """
    if type(layers) is not int or layers < 0:
        raise ConfigError(f"freeze.layers: {layers!r}; expected a whole number, 0 or more")
    for network in _networks(encoder):
        found = layer_list(network.base_model)
        if found is None:
            count = network.config.num_hidden_layers
            raise ModelError(
                f"{type(network).__name__}: has no list of {count} layers to freeze from"
            )
        stack = found[1]
        if layers > len(stack):
            raise ConfigError(
                f"freeze.layers: {layers}; {type(network).__name__} has {len(stack)} layers"
            )
        for layer in stack[:layers]:
            layer.requires_grad_(False)
        if embeddings:
            _embeddings(network).requires_grad_(False)
    return [name for name, p in encoder.module.named_parameters() if not p.requires_grad]


def _embeddings(network: Any) -> nn.Module:
    """Return all that comes before the first layer: of words, positions and segments."""
    whole = getattr(network.base_model, "embeddings", None)
    found: nn.Module = whole if isinstance(whole, nn.Module) else network.get_input_embeddings()
    return found


def _networks(encoder: Any) -> list[Any]:
    towers = getattr(encoder, "towers", None)
    return [encoder.model] if towers is None else [tower.model for tower in towers.values()]
