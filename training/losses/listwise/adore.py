"""ADORE: pairs of the retrieved list, weighted by the difference of their reciprocal ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from sluice.encoders.foundation.build import checked
from sluice.training.batches.targets import Negatives
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.packed_cells import Average, group_of
from sluice.training.losses.math.pair_sums import Ranks, check_cut, lambda_pairs, positions_of
from sluice.training.losses.math.reduction import scale_for
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
@checked("adore.")
class Adore(LossBase):
    """Mean over pairs with ``y_i > y_j`` of ``|1/i - 1/j| log(1 + exp(-(s_i - s_j)))``.

    i and j are positions in the retrieved list, the order of the columns; positives that were
    appended come after it. Reciprocals beyond ``metric_cut`` are 0, so a pair entirely beyond it
    weighs nothing. ``ranks: scores`` takes the ranks that the scores give now in place of the
    columns: for batches that are not retrieved lists. ``scale`` multiplies the scores; left out it
    is 20 for cosine and 1 for dot products. ``average`` is over each query's pairs, over all
    ``pairs``, or takes a query's ``sum``.

    Made for a frozen index searched with the current queries; documents are not trained. A query of
    whose documents none is a positive, or all are, contributes nothing.
    """

    summary = "lambda-weighted pairs over the live results of a frozen index"
    paper = "Zhan et al. 2021 (ADORE, arXiv 2104.08051)"

    negatives: ClassVar[Negatives] = "own"  # a query's list holds its own candidates

    metric_cut: Annotated[int | None, "Places of the list that count; null: all."] = 200
    ranks: Annotated[
        Ranks, "columns: the order of live candidates; scores: the order of the scores now."
    ] = "columns"
    average: Average = "queries"
    scale: Annotated[float | None, Gt(0)] = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"

    def __post_init__(self) -> None:
        check_cut("adore", self.metric_cut)

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        return self._of(matrix, None)  # column r is position r + 1 of the list

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the loss of the batch; each query's list is its own documents."""
        first = None
        if batch.matrix is None:  # a list begins at the first document that came with its row
            rows = torch.arange(len(batch.queries), device=batch.owners.device)
            own = batch.owners[None, :] == rows[:, None]
            first = own.to(torch.uint8).argmax(dim=1)
        return self._of(batch.score_matrix(), first)

    def _of(self, matrix: ScoreMatrix, first: Tensor | None) -> Tensor:
        group = group_of(matrix.times(scale_for(self.scale, self.similarity)))
        return lambda_pairs(
            group,
            group.labels,
            positions_of(group, self.ranks, first),
            metric_cut=self.metric_cut,
            weights=matrix.weights,
            average=self.average,
        )
