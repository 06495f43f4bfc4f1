"""From a score matrix to one number: the scale of scores, masks and weighted means."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sluice.encoders.foundation.errors import ConfigError


def widened(scores: Tensor) -> Tensor:
    """Return float32 scores for float16 and bfloat16 ones, others as they are."""
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


def floor_of(scores: Tensor) -> float:
    """Return a finite minus infinity: the gradient of -inf - (-inf) would be nan."""
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


# What lies in [-1, 1] is too narrow for a softmax or a logistic to saturate. A mean of MaxSim is
# made what the sum over a query of 32 tokens is.
SCALES = {"cosine": 20.0, "mean_max_sim": 32.0}


def scale_for(scale: float | None, similarity: str) -> float:
    """Return the factor of the scores; left out 20 for cosine and 1 for what is not bounded.

    For token vectors that is 1 for MaxSim, a sum over the query's tokens, and 32 for its mean and
    for XTR.
    """
    return SCALES.get(similarity, 1.0) if scale is None else scale


def temperature_for(temperature: float | None, similarity: str) -> float:
    """Return the divisor of the scores; left out 1 over what ``scale_for`` multiplies them by."""
    return 1.0 / scale_for(None, similarity) if temperature is None else temperature


def refuse_idle(called: str, loss: Any, names: Sequence[str], because: str) -> None:
    """Raise ``ConfigError`` for a setting that is not at its default although it does nothing.

    ``loss`` is a dataclass; ``because`` says what the setting is for.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(loss)}
    for name in names:
        value = getattr(loss, name)
        if value != defaults[name]:
            raise ConfigError(
                f"{called}.{name}: {value!r} does nothing: {because}, or leave it out"
            )


def check_positive(loss: str, **settings: float | None) -> None:
    """Raise ``ConfigError`` for a setting that is given and not a number above 0."""
    for name, value in settings.items():
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{loss}.{name}: {value!r}, expected above 0")
