"""The divergence of two distributions over the documents of a query."""

from __future__ import annotations

import torch
from torch import Tensor


def log_shares(scores: Tensor, taking: Tensor) -> Tensor:
    """``[B, L]``: the log of the softmax over the cells that take part, 0 at the others."""
    # A finite floor: the gradient of logsumexp over nothing but -inf is nan.
    held = scores.masked_fill(~taking, torch.finfo(scores.dtype).min / 2)
    return (held - held.logsumexp(1, keepdim=True)).masked_fill(~taking, 0.0)


def divergence(of: Tensor, from_: Tensor, taking: Tensor) -> Tensor:
    """``[B]``: ``sum_j p_j (log p_j - log q_j)`` for p in ``of`` and q in ``from_``, as logs."""
    return (of.exp() * (of - from_)).masked_fill(~taking, 0.0).sum(1)


def choices(taking: Tensor) -> Tensor:
    """``[B]``: 1 for a row with two cells or more; over a single one nothing can be learnt."""
    return (taking.sum(1) > 1).long()
