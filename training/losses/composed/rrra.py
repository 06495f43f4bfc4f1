"""RRRA, stage 3: a bi-encoder trained together with the adapter that finds its errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, normalize

from sluice.encoders.dense.error_adapter import FILE, ErrorAdapter
from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.composed.headed import Headed
from sluice.training.losses.composed.wrapper import of_vectors, plain_inside
from sluice.training.losses.math.width import width_of

KINDS = 4  # true and false negatives and positives


@dataclass(eq=False)
@checked("rrra.")
class RRRA(Headed[ErrorAdapter]):
    """``loss + adapter_weight L``, L the cross-entropy of relevance as an adapter gives it.

    Pairs are the cells that count of the batch. Among a query's documents the ``top`` of the
    highest cosines are what the bi-encoder finds; with the labels these make four kinds of pairs,
    true and false positives and negatives, and L is the mean over the kinds of the mean over their
    pairs (rows weigh theirs). Gradients reach the encoder. ``adapter`` is a folder of
    `sluice fit adapter`; left out, a new one begins. It is saved beside the model, which then opens
    as ``{type: rrra, model: ...}``. ``loss`` is by default InfoNCE.
    """

    summary = "the loss beside the cross-entropy of an adapter that finds the encoder's errors"
    paper = "RRRA, stage 3 (its figures are disputed; measured in other-representations.md)"

    called: ClassVar[str] = "rrra"
    head_name: ClassVar[str] = "adapter"
    usual: ClassVar[Mapping[str, Any]] = {"type": "info_nce"}

    adapter: Annotated[
        str | None, "The folder of a fitted adapter; left out, a new one begins."
    ] = None
    adapter_weight: Annotated[
        float, Gt(0), "The weight of the adapter's cross-entropy beside the loss."
    ] = 0.1
    top: Annotated[
        int, Ge(1), "The documents of a query that count as what the encoder finds in a batch."
    ] = 4

    def __post_init__(self) -> None:
        Headed.__post_init__(self)
        if self.adapter is not None and not (Path(self.adapter) / FILE).is_file():
            raise ConfigError(
                f"rrra.adapter: {self.adapter} has no {FILE}; `sluice fit adapter` makes such a "
                "folder, or leave it out"
            )
        plain_inside(self, "the adapter compares queries with documents only")

    def bind(self, encoder: Any, seed: int) -> None:
        """Load the adapter, or draw one, for the encoder's vectors."""
        super().bind(encoder, seed)
        device, width = next(encoder.module.parameters()).device, width_of(encoder)
        if self.adapter is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                head = ErrorAdapter(width, width)
        else:
            head = ErrorAdapter.load(self.adapter)
            if head.dim != width:
                raise ConfigError(
                    f"rrra.adapter: {self.adapter} is for vectors of {head.dim} dimensions, and "
                    f"the encoder's have {width}; fit an adapter for this encoder"
                )
        self.head = head.to(device).train()

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the inner loss plus the weighted cross-entropy."""
        of_vectors(batch, self.called)
        return self.inner.over(batch) + self.adapter_weight * self._entropy(batch)

    def _entropy(self, batch: VectorBatch) -> Tensor:
        head, count = self._head(), len(batch.documents)
        mask = batch.mask[:, :count]
        rows, columns = mask.nonzero(as_tuple=True)
        q, c = batch.queries[rows], batch.documents[columns]
        relevant = batch.labels[rows, columns] > 0
        kinds = 2 * relevant.long() + self._found(batch, mask)[rows, columns].long()
        logits = head.logits(q, head(q, c))
        cells = binary_cross_entropy_with_logits(logits, relevant.to(logits), reduction="none")
        share = torch.ones_like(cells)
        if batch.weights is not None:
            share = batch.weights[rows].to(cells)
        sums, sizes = cells.new_zeros(KINDS), cells.new_zeros(KINDS)
        sums = sums.index_add(0, kinds, cells * share)
        sizes = sizes.index_add(0, kinds, share)
        held = sizes > 0
        return (sums[held] / sizes[held]).sum() / held.sum().clamp(min=1)

    def _found(self, batch: VectorBatch, mask: Tensor) -> Tensor:
        """``[B, N]``: whether a document is among its query's ``top`` that count, by cosine."""
        with torch.no_grad():
            cosines = normalize(batch.queries, dim=1) @ normalize(batch.documents, dim=1).T
            cosines = cosines.masked_fill(~mask, -torch.inf)
            places = cosines.topk(min(self.top, cosines.shape[1]), dim=1).indices
            return torch.zeros_like(mask).scatter(1, places, True) & mask
