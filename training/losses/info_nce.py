"""InfoNCE: each query's positive against the other documents of the batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from encoders.errors import ConfigError
from training.batch import Negatives


@dataclass(frozen=True, slots=True)
class InfoNCE:
    """``mean_i [log sum_j exp(s_ij / t) - s_i+ / t]``, j over the positive and the negatives.

    ``temperature`` is t; left out it is 0.05 for cosine and 1 for dot products, which are not
    bounded. ``similarity`` overrides the encoder's. ``negatives`` says what a query is held
    against: ``all`` documents of the batch, its ``own``, the batch's positives (``inbatch_pos``),
    or these and its own (``inbatch_pos+own``, as SPLADE trains). ``same_side`` adds query-query and
    positive-positive scores (KaLM), ``symmetric`` the same loss from document to query, averaged.

    A query with several positives has the mean of their losses, none a negative of another.
    Documents known to be relevant are masked (``training.batch``). van den Oord et al. 2018, eq. 4.
    """

    temperature: float | None = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"
    negatives: Negatives = "all"
    same_side: bool = False
    symmetric: bool = False

    def __post_init__(self) -> None:
        if self.temperature is not None and not self.temperature > 0:
            raise ConfigError(f"info_nce.temperature: {self.temperature!r}, expected above 0")

    def bound_to(self, similarity: Literal["cosine", "dot"]) -> InfoNCE:
        """Return this loss with ``similarity: auto`` decided."""
        return replace(self, similarity=similarity) if self.similarity == "auto" else self

    def __call__(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """Return the loss; a label above 0 marks a positive. ``teacher`` is not used."""
        default = 1.0 if self.similarity == "dot" else 0.05
        scaled = scores / (self.temperature or default)
        mask = torch.ones_like(labels, dtype=torch.bool) if mask is None else mask
        forward = contrast(scaled, labels, mask, weights)
        if not self.symmetric:
            return forward
        spread = None if weights is None else _column_weights(labels, mask, weights)
        return (forward + contrast(scaled.T, labels.T, mask.T, spread)) / 2


def contrast(scores: Tensor, labels: Tensor, mask: Tensor, weights: Tensor | None) -> Tensor:
    """Return the weighted mean, over rows that have positives, of their softmax loss.

    For one positive p of a row: ``log(exp(s_p) + sum_negatives exp(s_j)) - s_p``; a row without
    negatives contributes 0.
    """
    positive = mask & (labels > 0)
    negative = mask & (labels <= 0)
    # A finite floor: the gradient of logsumexp over nothing but -inf is nan.
    floor = torch.finfo(scores.dtype).min / 2
    rest = scores.masked_fill(~negative, floor).logsumexp(1, keepdim=True)  # [B, 1]
    gap = (rest - scores).masked_fill(~positive, 0.0)
    terms = torch.logaddexp(torch.zeros_like(gap), gap) * positive  # [B, N]
    count = positive.sum(1)
    rows = terms.sum(1) / count.clamp(min=1)
    share = (count > 0).to(scores.dtype)
    if weights is not None:
        share = share * weights
    return (rows * share).sum() / share.sum().clamp(min=torch.finfo(scores.dtype).tiny)


def _column_weights(labels: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    positive = (mask & (labels > 0)).to(weights.dtype)
    return (positive * weights[:, None]).sum(0) / positive.sum(0).clamp(min=1)
