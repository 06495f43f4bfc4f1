"""AnglE: pairs compared by the angle between two vectors read as complex numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import normalize, softplus

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.table import Learnt as Form
from sluice.training.batches.vector_batch import Negatives, VectorBatch
from sluice.training.losses.base import LossBase, Want
from sluice.training.losses.math.reduction import floor_of, widened


@dataclass(frozen=True, slots=True)
@checked("angle.")
class AnglE(LossBase):
    """``log(1 + sum exp((u_b - u_a) / t))`` over pairs of cells with labels ``y_a > y_b``.

    A cell is a query and a document. Their vectors of length 1, halved into real and imaginary
    parts q = a + bi and d = c + ei, have ``u = |sum(a c + b e) + sum(b c - a e)|``, the sum of real
    and imaginary parts of q / d; it has a slope where the cosine saturates. The cells of all
    queries of the batch are compared. ``temperature`` is t. ``cosine_weight`` adds so many times
    the same loss over cosines (CoSENT). The published objective is the sum of this at a weight of
    1 each and ``info_nce``. Weights, relative to their mean, count a row's cells.
    """

    summary = "pairs of any queries ordered by the angle of complex vectors; `cosine_weight`"
    paper = "Li and Li 2024 (AnglE, arXiv 2309.12871)"

    forms: ClassVar[tuple[Form, ...]] = ("dense",)  # what it trains
    wants: ClassVar[frozenset[Want]] = frozenset({"across_queries"})

    temperature: Annotated[
        float, Gt(0), "Divides the angles: less makes the loss look at the worst pairs."
    ] = 0.05
    cosine_weight: Annotated[float, Ge(0), "The weight of the same loss over cosines; 0: none."] = (
        0.0
    )
    negatives: Negatives = "own"

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the loss of a batch of vectors."""
        if batch.matrix is not None:
            raise ConfigError(
                "angle: needs the vectors of both sides, and the scores of this batch come from "
                "elsewhere (another loss's matrix); put the losses the other way round"
            )
        queries = normalize(widened(batch.queries), dim=1)
        documents = normalize(widened(batch.documents), dim=1)
        value = self._order_loss(batch, angles(queries, documents))
        if not self.cosine_weight:
            return value
        return value + self.cosine_weight * self._order_loss(batch, queries @ documents.T)

    def _order_loss(self, batch: VectorBatch, scores: Tensor) -> Tensor:
        """Return ``log(1 + sum exp((s_b - s_a) / t))`` over cells with labels ``y_a > y_b``.

        For each label the sum over its cells times the sum over those below it: no pairs are held.
        """
        width = scores.shape[1]
        taking, labels = batch.mask[:, :width], batch.labels[:, :width]
        logs = torch.zeros_like(scores)
        if batch.weights is not None:
            rows = batch.weights.to(scores)
            taking = taking & (rows > 0)[:, None]
            mean = rows.sum() / (rows > 0).sum().clamp(min=1)
            share = (rows / mean.clamp(min=torch.finfo(rows.dtype).tiny)).clamp(min=1e-30)
            logs = share.log()[:, None].expand_as(scores)
        cells, grades, logs = scores[taking] / self.temperature, labels[taking], logs[taking]
        if not len(cells):
            return scores.sum() * 0.0
        floor = floor_of(cells)
        terms = []
        for grade in sorted(set(grades.tolist()))[1:]:
            above = (logs - cells).masked_fill(grades != grade, floor).logsumexp(0)
            below = (logs + cells).masked_fill(grades >= grade, floor).logsumexp(0)
            terms.append(above + below)
        return softplus(torch.stack(terms).logsumexp(0)) if terms else cells.sum() * 0.0


def angles(queries: Tensor, documents: Tensor) -> Tensor:
    """Return ``[B, N]``, u of vectors of length 1: ``[B, dim]`` and ``[N, dim]``, an even dim."""
    if queries.shape[1] % 2:
        raise ConfigError(
            f"angle: the vectors have {queries.shape[1]} dimensions, expected an even number: "
            "their halves are real and imaginary parts"
        )
    real, imaginary = queries.chunk(2, dim=1)
    # sum(a c + b e) + sum(b c - a e) = (a + b) . c + (b - a) . e
    turned = torch.cat([real + imaginary, imaginary - real], dim=1)
    return (turned @ documents.T).abs()
