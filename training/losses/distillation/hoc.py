"""HOC: a new encoder's vector of a text against an old one's vectors of all texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Gt
from torch import Tensor
from torch.nn.functional import normalize

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.tuning.learning import Form
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.base import LossBase
from sluice.training.losses.distillation.text_means import (
    Sides,
    mean_over_texts,
    teacher_of,
    vectors_of,
)
from sluice.training.losses.math.reduction import floor_of
from sluice.training.protocol import Side


@dataclass(frozen=True, slots=True)
@checked("hoc.")
class HOC(LossBase):
    """Mean over texts of ``-log softmax_y(cos(f(x), T(y)) / t)`` at y = x (higher-order alignment).

    T is ``teacher``, the encoder of an old index, and y runs over the batch's texts of both sides
    that are not of x's class: a query and its relevant documents are of one class, and so are
    documents relevant to one query and queries that share a relevant document. Those are left out
    (the authors' code multiplies their logits by 0, which leaves each e^0 in the sum). ``sides``:
    the texts x, ``query`` for a query encoder that is to search the old index. ``temperature`` is
    t, 1 / mu in the paper. Both must have as many dimensions.
    """

    summary = "a new encoder's vectors told apart among an old one's, for the old one's index"
    paper = "Biondi et al. 2024 (Stationary Representations, arXiv 2405.02581)"

    forms: ClassVar[tuple[Form, ...]] = ("dense",)  # what it trains
    teacher_vectors: ClassVar[bool] = True

    temperature: Annotated[float, Gt(0), "Divides the cosines; 1 over mu in the paper."] = 0.1
    sides: Annotated[Sides, "The texts whose vectors are told apart among the teacher's."] = "both"

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the mean over the texts; a text weighs what its query weighs."""
        own, taught = vectors_of(batch), teacher_of(batch, "hoc")
        if own["query"].shape[1] != taught["query"].shape[1]:
            raise ConfigError(
                f"hoc: the encoder's vectors have {own['query'].shape[1]} dimensions and the "
                f"teacher's {taught['query'].shape[1]}; set encoder.projection: "
                f"{taught['query'].shape[1]}"
            )
        old = normalize(torch.cat([taught["query"], taught["document"]]).to(batch.queries), dim=1)
        alike = same_class(batch)
        count = len(batch.queries)
        rows = {"query": slice(count), "document": slice(count, None)}

        def entropy(side: Side) -> Tensor:
            scores = normalize(own[side], dim=1) @ old.T / self.temperature
            right = torch.eye(len(old), dtype=torch.bool, device=old.device)[rows[side]]
            scores = scores.masked_fill(alike[rows[side]] & ~right, floor_of(scores))
            return scores.logsumexp(dim=1) - scores[right]

        return mean_over_texts(batch, self.sides, entropy)


def same_class(batch: VectorBatch) -> Tensor:
    """``[B + N, B + N]``: queries, then documents, that are of one class; each of its own."""
    count = batch.documents.shape[0]
    names: dict[str, int] = {}
    ids = batch.ids.get("document") or [str(column) for column in range(count)]
    codes = torch.tensor([names.setdefault(str(name), len(names)) for name in ids])
    twins = (codes[:, None] == codes).to(batch.labels)  # [N, N]
    relevant = (batch.labels[:, :count] > 0).to(twins) @ twins  # [B, N]
    queries = relevant @ relevant.T + torch.eye(len(relevant)).to(twins)
    pairs = relevant + (~batch.mask[:, :count]).to(twins)
    documents = relevant.T @ relevant + twins
    return torch.cat([torch.cat([queries, pairs], 1), torch.cat([pairs.T, documents], 1)]) > 0
