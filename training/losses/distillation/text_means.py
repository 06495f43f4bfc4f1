"""Means over the texts of a batch, for losses that look at each text alone beside its teacher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from sluice.encoders.foundation.errors import DataError
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.math.reduction import weighted_mean
from sluice.training.protocol import Side

Sides: TypeAlias = Literal["both", "query", "document"]


def vectors_of(batch: VectorBatch) -> dict[Side, Tensor]:
    """Return the vectors that are trained, by side."""
    return {"query": batch.queries, "document": batch.documents}


def teacher_of(batch: VectorBatch, called: str) -> dict[Side, Tensor]:
    """Return the teacher's vectors by side; ``DataError`` for a batch without them."""
    if batch.teacher_vectors is None:
        raise DataError(
            f"{called}: the batch has no teacher's vectors; name a dense encoder under `teacher:`"
        )
    queries, documents = batch.teacher_vectors
    return {"query": queries, "document": documents}


def mean_over_texts(batch: VectorBatch, sides: Sides, value: Callable[[Side], Tensor]) -> Tensor:
    """Return the mean of ``value(side)``, a number for each text; a text weighs like its query."""
    chosen: list[Side] = ["query", "document"] if sides == "both" else [sides]
    values = torch.cat([value(side) for side in chosen])
    if batch.weights is None:
        return weighted_mean(values, torch.ones_like(values))
    shares = {"query": batch.weights, "document": batch.weights[batch.owners]}
    weights = torch.cat([shares[side] for side in chosen])
    return weighted_mean(values, torch.ones_like(values), weights)
