"""The base of losses of what a language model writes: the cross-entropy of its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.base import LossBase


class WrittenLoss(LossBase):
    """Mean cross-entropy of the tokens that ``SpanModule`` predicts."""

    __slots__ = ()

    def batch(self, made: Mapping[str, Tensor], inputs: Mapping[str, Any]) -> VectorBatch:
        """Lay out what ``SpanModule`` made: no vectors, sums and numbers."""
        sums = made["query"]
        none = torch.zeros(0, dtype=torch.long, device=sums.device)
        empty = sums.new_zeros((0, 1))
        return VectorBatch(
            queries=empty,
            documents=empty,
            labels=sums.new_zeros((0, len(sums))),
            mask=torch.zeros((0, len(sums)), dtype=torch.bool, device=sums.device),
            positives=none,
            owners=none,
            features=inputs["features"],
            ids=inputs["ids"],
            matrix=sums,
        )

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the mean over the tokens of the batch's texts, 0 where there are none.

        ``matrix`` is ``[n, 2]``: of each query the summed cross-entropy and the number of tokens.
        """
        if batch.matrix is None or len(batch.queries):
            raise ConfigError(
                "loss: what a model writes cannot be combined with ranking: it has no vectors"
            )
        total, count = batch.matrix.sum(0)
        mean: Tensor = total / count.clamp(min=1)
        return mean
