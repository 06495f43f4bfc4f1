"""Query by document: a reranker that also learns to tell texts apart one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Gt
from torch import Tensor

from sluice.encoders.foundation.build import build, checked
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.table import Learnt as Form
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses import LOSSES
from sluice.training.losses.base import LossBase, Want, type_name
from sluice.training.losses.composed.sum_of_losses import WeightedSum
from sluice.training.losses.contrastive.softmax import LocalizedSoftmax
from sluice.training.losses.math.reduction import (
    averaged,
    group_of,
    hinge,
    ordered,
    ordered_pairs,
    pair_sums,
)
from sluice.training.protocol import ScoreMatrix


class QBD(WeightedSum):
    """``L_rank + triplet_weight * mean max(0, |q - d+| - |q - d-| + margin)``.

    ``base`` is the ranking loss over the scores of the pairs, ``localized_softmax`` unless given.
    q, d+ and d- are the states of the first token when the same cross-encoder reads the query, a
    positive and a negative of its group alone; distances are Euclidean. Scoring stays as it was and
    nothing is added to the saved model. With a ``triplet_weight`` of 0 no text is read alone.
    """

    summary = "a ranking loss and a triplet loss over the texts read alone"
    paper = "Abolghasemi, Verberne and Azzopardi 2022 (MTFT-BERT, arXiv 2202.00373)"

    def __init__(
        self,
        base: dict[str, Any] | None = None,
        triplet_weight: Annotated[float, "The weight of the triplet loss; 0: none."] = 0.1,
        margin: Annotated[float, "The margin of the triplet loss."] = 1.0,
    ) -> None:
        if triplet_weight == 0 and margin != TextTriplet.MARGIN:
            raise ConfigError(
                f"qbd.margin: {margin!r} does nothing: it is the triplet loss's, which weighs 0; "
                "set triplet_weight, or leave it out"
            )
        spec = {"type": type_name(LocalizedSoftmax)} if base is None else base
        members = [(str(spec.get("type")), 1.0, build(spec, LOSSES, where="base"))]
        triplet = TextTriplet(margin)
        if triplet_weight != 0:
            members.append(("triplet", triplet_weight, triplet))
        self._take(members)
        if "scores" not in self._common_forms():
            raise ConfigError(f"base: {members[0][0]} does not train a cross_encoder, as qbd does")

    @property
    def forms(self) -> tuple[str, ...]:
        """Those of encoders that read texts alone."""
        return TextTriplet.forms


@dataclass(frozen=True, slots=True)
@checked("qbd.")
class TextTriplet(LossBase):
    """Mean over a query's pairs of positive and negative of ``max(0, |q - d+| - |q - d-| + m)``.

    Over a cross-encoder's vectors of the texts apart; a query without a pair contributes nothing.
    """

    forms: ClassVar[tuple[Form, ...]] = ("scores",)  # what it trains
    wants: ClassVar[frozenset[Want]] = frozenset({"texts"})
    MARGIN: ClassVar[float] = 1.0

    margin: Annotated[float, Gt(0)] = MARGIN

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the loss; ``labels`` and ``mask`` are ``[B, width]``, groups padded."""
        if len(batch.documents) != len(batch.owners):
            raise ConfigError(
                f"qbd: {len(batch.documents)} vectors of {len(batch.owners)} documents; the "
                "encoder gives none of single texts: a cross_encoder does"
            )
        owners = batch.owners
        gaps = batch.queries[owners] - batch.documents  # [N, hidden]
        distances = torch.linalg.vector_norm(gaps, dim=1)
        places = torch.arange(len(owners), device=owners.device)
        slots = places - torch.searchsorted(owners, owners)  # owners ascend
        matrix = distances.new_zeros(batch.labels.shape).index_put((owners, slots), distances)
        positive = (batch.labels > 0).to(matrix.dtype)
        group = group_of(ScoreMatrix(-matrix, positive, batch.mask, None, None))
        margin = matrix.new_tensor(self.margin)
        cost = hinge(lambda rows: margin, lambda rows: ordered(group, group.labels, rows))
        sums = pair_sums(group.scores, cost)
        return averaged(sums, ordered_pairs(group, group.labels), batch.weights, "queries")
