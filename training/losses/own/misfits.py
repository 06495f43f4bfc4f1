"""Queries as negatives: a document is nearer to its description than to wrong ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Gt
from torch import Tensor
from torch.nn.functional import normalize, relu

from sluice.encoders.foundation.build import checked
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses import USUAL
from sluice.training.losses.base import Want
from sluice.training.losses.composed.wrapping import Wrapping
from sluice.training.losses.math.reduction import mean_by_row, refuse_idle, weighted_mean

Form = Literal["triplet", "softmax"]


@dataclass(eq=False)
@checked("misfits.")
class Misfits(Wrapping):
    """``loss + weight * mean_i L_i``, L_i over query i's positives d and the queries m they misfit.

    ``triplet``: L_i is the mean over all pairs of ``max(0, |d - q_i| - |d - m| + margin)``,
    Euclidean, of vectors of length 1 where cosines are compared. ``softmax``: the mean over d of
    ``log(1 + sum_m exp((s(d, m) - s(d, q_i)) / temperature))``. The m are the examples'
    ``negative_queries``; an example without any has the inner loss alone, by default InfoNCE at
    temperature 0.1. (Ravfogel et al. 2024, Description-based text similarity, arXiv 2305.12517,
    whose code draws one m a step: this is the triplet loss of all of them.)
    """

    summary = "queries that the positive does not answer, as further negatives"
    paper = "Ravfogel et al. 2024 (arXiv 2305.12517)"

    called: ClassVar[str] = "misfits"
    usual: ClassVar[Mapping[str, Any]] = {**USUAL, "temperature": 0.1}
    trains: ClassVar[tuple[str, ...]] = ("dense", "sparse")

    form: Annotated[
        Form, "triplet: by distances and a margin; softmax: the query against its misfits."
    ] = "triplet"
    weight: Annotated[float, Gt(0), "The weight of the misfits' part."] = 0.1
    margin: Annotated[float, Gt(0), "How much farther than the query a misfit has to be."] = 1.0
    temperature: Annotated[float, Gt(0), "Divides the scores in the softmax."] = 0.1

    def __post_init__(self) -> None:
        Wrapping.__post_init__(self)
        self._seen: dict[str, float] = {}
        idle, form = ("temperature", "softmax") if self.form == "triplet" else ("margin", "triplet")
        refuse_idle("misfits", self, [idle], f"it is of form: {form}; set that")

    @property
    def wants(self) -> frozenset[Want]:
        """Negative queries too: without them it is the inner loss."""
        return super().wants | {"negative_queries"}

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the inner loss and the weighted mean over the misfits."""
        value = self.inner.over(batch)
        if batch.negative_queries is None or not len(batch.negative_queries[0]):
            self._seen = {}
            return value
        return value + self.weight * self._misfit(batch, *batch.negative_queries)

    def _misfit(self, batch: VectorBatch, rows: Tensor, misfits: Tensor) -> Tensor:
        """Return the weighted mean of L_i over the queries with misfits, of rows ``[n]``."""
        queries, documents = batch.queries, batch.documents
        if batch.cosine:
            queries, documents, misfits = (
                normalize(vectors, dim=1) for vectors in (queries, documents, misfits)
            )
        width = len(batch.owners)
        own = (batch.owners == rows[:, None]) & batch.mask[rows, :width]  # [n, N]
        positive = batch.labels[rows, :width] > 0
        places, columns = (own & positive).nonzero().unbind(1)  # [P], of misfits and documents
        asking, anchors, against = queries[rows[places]], documents[columns], misfits[places]
        if self.form == "triplet":
            gaps = _distance(anchors, asking) - _distance(anchors, against)  # [P]
            terms, of = relu(gaps + self.margin), rows[places]
        else:
            gaps = (anchors * (against - asking)).sum(1)  # [P]
            documents_of, group = torch.unique(columns, return_inverse=True)
            terms = _log1p_sum_exp(gaps / self.temperature, group, len(documents_of))
            of = batch.owners[documents_of]
        means, present = mean_by_row(terms, of, len(batch.queries))
        value = weighted_mean(means, present, batch.weights)
        self._seen = {
            "misfits_loss": float(value.detach()),
            "misfits_told": float((gaps.detach() < 0).float().mean()),
        }
        return value

    def notes(self) -> dict[str, float]:
        """Return the last batch's loss, and the share of pairs where the right query is nearer."""
        return {**super().notes(), **self._seen}


def _distance(left: Tensor, right: Tensor) -> Tensor:
    distances: Tensor = torch.linalg.vector_norm(left - right, dim=1)
    return distances


def _log1p_sum_exp(values: Tensor, group: Tensor, count: int) -> Tensor:
    """Return ``[count]``: ``log(1 + sum exp)`` over the values of each group."""
    highest = values.detach().new_zeros(count)
    highest = highest.scatter_reduce(0, group, values.detach(), "amax")  # 0 is the 1's own
    sums = (-highest).exp().index_add(0, group, (values - highest[group]).exp())
    total: Tensor = sums.log() + highest
    return total
