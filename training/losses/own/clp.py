"""CLP: a penalty for negatives that drift away from the queries they answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Interval
from torch import Tensor
from torch.nn.functional import cosine_similarity

from sluice.encoders.foundation.build import checked
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses import USUAL
from sluice.training.losses.base import Want
from sluice.training.losses.composed.wrapping import Wrapping


@dataclass(eq=False)
@checked("clp.")
class CLP(Wrapping):
    """``(1 - w) loss + w mean_j (1 - cos(n_j, r_j))``, j over negatives that answer a query r_j.

    w is ``penalty``. The inner loss is by default InfoNCE at temperature 0.02. A batch without such
    negatives has no penalty; rows weigh their negatives. Yu 2024, arXiv 2412.17364
    (its printed formula has unbalanced brackets; this is what its code computes).
    """

    summary = "a penalty for negatives that drift away from the queries they answer"
    paper = "Yu 2024 (CLP, arXiv 2412.17364)"

    called: ClassVar[str] = "clp"
    usual: ClassVar[Mapping[str, Any]] = {**USUAL, "temperature": 0.02}
    trains: ClassVar[tuple[str, ...]] = ("dense", "sparse")

    penalty: Annotated[float, Interval(ge=0, le=1), "The weight of the penalty."] = 0.1

    def __post_init__(self) -> None:
        Wrapping.__post_init__(self)
        self._seen: tuple[float, int] | None = None

    @property
    def wants(self) -> frozenset[Want]:
        """The queries that negatives answer too, unless the penalty weighs nothing."""
        return super().wants | {"answered"} if self.penalty > 0 else super().wants

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the mix of the inner loss and the penalty."""
        drift, count = self._drift(batch)
        self._seen = float(drift.detach()), count
        return (1 - self.penalty) * self.inner.over(batch) + self.penalty * drift

    def _drift(self, batch: VectorBatch) -> tuple[Tensor, int]:
        """Return the weighted mean of 1 - cos over the answered negatives, and their number."""
        if batch.answered is None:
            return batch.queries.new_zeros(()), 0
        columns, answered = batch.answered
        rows = batch.owners[columns]
        negative = batch.mask[rows, columns] & (batch.labels[rows, columns] <= 0)
        columns, answered, rows = columns[negative], answered[negative], rows[negative]
        if not len(columns):
            return batch.queries.new_zeros(()), 0
        gaps = 1 - cosine_similarity(batch.documents[columns], answered, dim=1)
        share = torch.ones_like(gaps) if batch.weights is None else batch.weights[rows].to(gaps)
        total = share.sum().clamp(min=torch.finfo(gaps.dtype).tiny)
        return (gaps * share).sum() / total, len(columns)

    def notes(self) -> dict[str, float]:
        """Return the last batch's drift and how many negatives answered a query."""
        if self._seen is None:
            return super().notes()
        drift, count = self._seen
        return {**super().notes(), "clp_drift": drift, "clp_answered": float(count)}
