"""MNR+: in-batch softmax whose targets are how alike the batch's queries and positives are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Gt
from torch import Tensor, arange
from torch.nn.functional import normalize

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.table import Learnt as Form
from sluice.training.batches.vector_batch import Negatives, VectorBatch
from sluice.training.losses.base import LossBase
from sluice.training.losses.math.reduction import floor_of, weighted_mean, widened


@dataclass(frozen=True, slots=True)
@checked("mnr_plus.")
class MNRPlus(LossBase):
    """``mean_i -sum_j T_ij log softmax_j(cos(q_i, p_j) / t)``, averaged with the same by columns.

    The targets are ``T = softmax((cos(q_i, q_j) + cos(p_i, p_j)) / 2 / s)``, as a constant: pairs
    that are alike are not negatives of each other. p are the queries' first positives; cells that
    are known to be relevant are left out of both. ``temperature`` is t, ``target_temperature`` s.
    (The authors' code takes the largest target alone, which is the pair itself: ``info_nce``.)
    """

    summary = "targets from how alike the batch's queries and positives are (MNR+)"
    paper = "Gleghorn et al. 2024 (contrastive learning and mixture of experts)"

    forms: ClassVar[tuple[Form, ...]] = ("dense",)  # what it trains
    negatives: ClassVar[Negatives] = "inbatch_pos"

    temperature: Annotated[float, Gt(0), "Divides the cosines of queries and positives."] = 0.05
    target_temperature: Annotated[float, Gt(0), "Divides the similarities of the targets."] = 0.05

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the loss of a batch of vectors."""
        if batch.matrix is not None:
            raise ConfigError(
                "mnr_plus: needs the vectors of both sides, and the scores of this batch come from "
                "elsewhere (another loss's matrix); put the losses the other way round"
            )
        queries = normalize(widened(batch.queries), dim=1)
        positives = normalize(widened(batch.documents), dim=1)[batch.positives]
        rows = arange(len(queries), device=queries.device)
        own = rows[:, None] == rows
        judged = batch.labels[:, batch.positives] > 0
        taking = own | (batch.mask[:, batch.positives] & ~judged)
        alike = (queries @ queries.T + positives @ positives.T).detach() / 2
        value = queries.sum() * 0.0
        for scores, there in ((queries @ positives.T, taking), (positives @ queries.T, taking.T)):
            floor = floor_of(scores)
            goals = (alike / self.target_temperature).masked_fill(~there, floor).softmax(dim=1)
            logs = (scores / self.temperature).masked_fill(~there, floor).log_softmax(dim=1)
            each = -(goals * logs.masked_fill(~there, 0.0)).sum(dim=1)
            known = batch.mask[rows, batch.positives] & (batch.labels[rows, batch.positives] > 0)
            value = value + weighted_mean(each, known, batch.weights) / 2
        return value
