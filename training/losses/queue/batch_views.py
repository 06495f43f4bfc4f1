"""A batch seen otherwise: with more documents behind it, or with its sides exchanged."""

from __future__ import annotations

import torch
from torch import Tensor

from sluice.training.batches.vector_batch import VectorBatch


def behind(batch: VectorBatch, queued: Tensor, allowed: Tensor) -> VectorBatch:
    """Return the batch with queued vectors as further documents, negatives where allowed."""
    if not len(queued):
        return batch
    labels = torch.zeros_like(allowed, dtype=batch.labels.dtype)
    teacher = batch.teacher
    if teacher is not None:
        teacher = torch.cat([teacher, torch.full_like(labels, torch.nan).to(teacher)], dim=1)
    return batch.with_vectors(
        batch.queries,
        torch.cat([batch.documents, queued.to(batch.documents)]),
        labels=torch.cat([batch.labels, labels], dim=1),
        mask=torch.cat([batch.mask, allowed], dim=1),
        owners=torch.cat([batch.owners, batch.owners.new_full((len(queued),), -1)]),
        teacher=teacher,
    )


def _square(batch: VectorBatch, mask: Tensor, queries: Tensor, documents: Tensor) -> VectorBatch:
    """Return a batch whose row i has the document i as its positive."""
    count = len(mask)
    diagonal = torch.arange(count, device=mask.device)
    same = torch.eye(count, dtype=torch.bool, device=mask.device)
    return batch.with_vectors(
        queries,
        documents,
        labels=same.to(batch.labels.dtype),
        mask=mask | same,
        positives=diagonal,
        owners=diagonal,
        teacher=None,
        answered=None,
        layers=(),
    )


def swapped(batch: VectorBatch) -> VectorBatch:
    """Return the first positives asking for the queries."""
    places = batch.positives
    negative = batch.mask[:, places] & (batch.labels[:, places] <= 0)
    return _square(batch, negative.T, batch.documents[places], batch.queries)


def mutual(batch: VectorBatch) -> VectorBatch:
    """Return rows against rows: negatives where neither's positive is the other's."""
    places = batch.positives
    negative = batch.mask[:, places] & (batch.labels[:, places] <= 0)
    return _square(batch, negative & negative.T, batch.queries, batch.queries)
