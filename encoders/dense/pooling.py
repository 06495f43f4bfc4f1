"""Pools token states into one vector: the poolings of dense encoders."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


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


def weighted_mean(states: Tensor, mask: Tensor) -> Tensor:
    """Average with weights 1, 2, 3, ... over the real tokens (Muennighoff, 2022, SGPT)."""
    weights = (mask.long().cumsum(dim=1) * mask).unsqueeze(-1).to(states.dtype)
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
