"""Losses of predicted tokens: a cross-entropy, and the base of those of what a model writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.base import LossBase


def token_batch(sums: Tensor, documents: Tensor, inputs: Mapping[str, Any]) -> VectorBatch:
    """Return a batch without queries, whose ``matrix`` is ``sums`` ``[n, 2]``.

    Of each text these are the summed cross-entropy of its tokens and their number.
    """
    none = torch.zeros(0, dtype=torch.long, device=sums.device)
    return VectorBatch(
        queries=documents.new_zeros((0, documents.shape[1])),
        documents=documents,
        labels=sums.new_zeros((0, len(sums))),
        mask=torch.zeros((0, len(sums)), dtype=torch.bool, device=sums.device),
        positives=none,
        owners=none,
        features=inputs["features"],
        ids=inputs["ids"],
        matrix=sums,
    )


def mean_entropy(batch: VectorBatch, refusal: str) -> Tensor:
    """Return the mean over all tokens of a ``token_batch``, 0 where there are none.

    ``ConfigError`` with the text ``refusal`` for the batch of another loss.
    """
    if batch.matrix is None or len(batch.queries):
        raise ConfigError(refusal)
    total, count = batch.matrix.sum(0)
    mean: Tensor = total / count.clamp(min=1)
    return mean


class WrittenLoss(LossBase):
    """Mean cross-entropy of the tokens that ``SpanModule`` predicts."""

    __slots__ = ()

    def batch(self, made: Mapping[str, Tensor], inputs: Mapping[str, Any]) -> VectorBatch:
        """Lay out what ``SpanModule`` made: no vectors, sums and numbers."""
        sums = made["query"]
        return token_batch(sums, sums.new_zeros((0, 1)), inputs)

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the mean over the tokens of the batch's texts, see ``mean_entropy``."""
        return mean_entropy(
            batch, "loss: what a model writes cannot be combined with ranking: it has no vectors"
        )
