"""Pools token states into one vector; checks what a folder and a caller say of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

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


Pooling = Literal["cls", "mean", "mean_sqrt", "max", "last", "weighted_mean"]
Poolings: TypeAlias = Pooling | tuple[Pooling, ...]  # several stand side by side


def cls(states: Tensor, mask: Tensor) -> Tensor:
    """Take the first real token's state (also right when padding is on the left)."""
    first = mask.long().argmax(dim=1)
    return states[torch.arange(len(states), device=states.device), first]


def mean(states: Tensor, mask: Tensor) -> Tensor:
    """Average the real tokens' states: the sum is divided by the mask's count, not the length."""
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)


def mean_sqrt(states: Tensor, mask: Tensor) -> Tensor:
    """Sum the real tokens' states and divide by the square root of their count."""
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0).sqrt()


def maximum(states: Tensor, mask: Tensor) -> Tensor:
    """Take the maximum over the real tokens, dimension by dimension."""
    return states.masked_fill(~mask.bool().unsqueeze(-1), float("-inf")).amax(dim=1)


def last(states: Tensor, mask: Tensor) -> Tensor:
    """Take the last real token's state, whichever side the padding is on."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    index = (mask.long() * positions).argmax(dim=1)
    return states[torch.arange(len(states), device=states.device), index]


def weighted_mean(states: Tensor, mask: Tensor, real: Tensor | None = None) -> Tensor:
    """Average with weights 1, 2, 3, ... over the real tokens (Muennighoff, 2022, SGPT).

    Where ``mask`` leaves tokens out of ``real`` ones, a prompt's, the others keep their weights.
    """
    numbers = (mask if real is None else real).long().cumsum(dim=1)
    weights = (numbers * mask).unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)


# states [n, length, hidden], mask [n, length] -> [n, hidden]
POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": cls,
    "mean": mean,
    "mean_sqrt": mean_sqrt,
    "max": maximum,
    "last": last,
    "weighted_mean": weighted_mean,
}


def checked_pooling(pooling: Any) -> Poolings:
    """Return a pooling, or several as a tuple; ``ConfigError`` for one that does not exist."""
    several = not isinstance(pooling, str) and isinstance(pooling, Sequence)
    names: tuple[Any, ...] = tuple(pooling) if several else (pooling,)
    for name in names:
        if not isinstance(name, str) or name not in POOLINGS:
            raise ConfigError(f"pooling: {name!r}; known: {', '.join(POOLINGS)}")
    if not names:
        raise ConfigError(f"pooling: none; expected one or several of {', '.join(POOLINGS)}")
    return names if len(names) > 1 else names[0]


def pooled(states: Tensor, mask: Tensor, pooling: Poolings, real: Tensor) -> Tensor:
    """Pool states ``[n, length, hidden]`` to ``[n, hidden]``, or that times several poolings.

    ``mask`` are the tokens to pool among the ``real`` ones, both ``[n, length]``.
    """
    parts = [
        weighted_mean(states, mask, real)
        if name == "weighted_mean"
        else POOLINGS[name](states, mask)
        for name in pooling_names(pooling)
    ]
    return torch.cat(parts, dim=-1)


def pooling_names(pooling: Poolings) -> tuple[Pooling, ...]:
    """Return the poolings whose states stand side by side."""
    return (pooling,) if isinstance(pooling, str) else pooling
