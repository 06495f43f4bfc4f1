"""From the cells of a score matrix to one number: precision, masks and weighted means."""

from __future__ import annotations

import torch
from torch import Tensor


def widened(scores: Tensor) -> Tensor:
    """Return float32 scores for float16 and bfloat16 ones, others as they are."""
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


def floor_of(scores: Tensor) -> float:
    """Return what stands for minus infinity: finite, as the gradient of -inf - (-inf) is nan."""
    return torch.finfo(scores.dtype).min / 2


def weighted_mean(values: Tensor, share: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean of finite ``values``, each counted ``share`` times; 0 where all shares are 0.

    ``weights`` ``[B]`` multiply the shares row by row.
    """
    share = share.to(values.dtype)
    if weights is not None:
        rows = weights.to(values.dtype)
        share = share * rows.reshape(-1, *(1,) * (share.dim() - 1))
    return (values * share).sum() / share.sum().clamp(min=torch.finfo(values.dtype).tiny)


def mean_by_row(values: Tensor, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return ``[count]`` means of the values of each row (0 without any) and which rows have some.

    ``rows`` says for every value to which row it belongs.
    """
    sizes = torch.bincount(rows, minlength=count)
    sums = values.new_zeros(count).index_add(0, rows, values)
    return sums / sizes.clamp(min=1), sizes > 0
