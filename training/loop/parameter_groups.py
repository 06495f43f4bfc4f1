"""Separate learning rates for parts of an encoder and for a loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from sluice.encoders.foundation.errors import ConfigError


def with_own_rate(
    optimizer: torch.optim.Optimizer, model: nn.Module, names: Sequence[str], rate: float, key: str
) -> None:
    """Give the parameters whose names contain one of ``names`` their own learning rate.

    They leave their groups but keep the groups' other settings. Raises ``ConfigError`` that names
    ``key`` when there are none.
    """
    chosen = {id(p) for n, p in model.named_parameters() if any(part in n for part in names)}
    moved = False
    for group in list(optimizer.param_groups):
        own = [p for p in group["params"] if id(p) in chosen]
        if own:
            moved = True
            group["params"] = [p for p in group["params"] if id(p) not in chosen]
            optimizer.add_param_group({**group, "params": own, "lr": rate})
    if not moved:
        raise ConfigError(f"{key}: this encoder has no trainable parameters of that kind")


def add_rates(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    *,
    head: tuple[Sequence[str], float | None],
    parts: Mapping[str, float],
    loss: tuple[Sequence[nn.Parameter], float],
) -> None:
    """Set the learning rates of a head, of named parts of an encoder, and of a loss."""
    names, rate = head
    if rate is not None:
        with_own_rate(optimizer, model, names, rate, "head_learning_rate")
    for name, own_rate in parts.items():
        with_own_rate(optimizer, model, [name], own_rate, f"encoder: the rate of {name}")
    parameters, loss_rate = loss
    if parameters:
        optimizer.add_param_group(
            {"params": list(parameters), "weight_decay": 0.0, "lr": loss_rate}
        )
