"""The number that is minimised: the loss of a batch's vectors, plus the sparsity penalties."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sluice.encoders.foundation.errors import DataError
from sluice.training.batches.processes import gathered
from sluice.training.batches.scoring import Scoring
from sluice.training.batches.token_scores import TokenScoring, tokens_of
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.base import LossBase
from sluice.training.sparsity.regulariser import Regulariser, active_terms

if TYPE_CHECKING:
    from sluice.training.loop.live_candidates import LiveCandidates

log = logging.getLogger("sluice")


class Objective:
    """The loss of a batch with the penalties of the regulariser, always in float32.

    ``parts`` collects sums and counts of what the next log line reports as means. ``scoring`` is
    for vectors that no inner product compares; of tokens, ``cosine`` then says that each has length
    1.
    """

    def __init__(
        self,
        loss: LossBase,
        *,
        cosine: bool,
        regulariser: Regulariser | None = None,
        live: LiveCandidates | None = None,
        scoring: Scoring | None = None,
    ) -> None:
        self.loss = loss
        self.cosine = cosine
        self.scoring = scoring
        self.regulariser = regulariser
        self.live = live
        self.parts: dict[str, tuple[Tensor, int]] = {}
        self._checked = False  # whether `xtr` leaves any token out

    def __call__(
        self, outputs: Mapping[str, Tensor], inputs: Mapping[str, Any], *, layers: int, step: int
    ) -> Tensor:
        """Return the value for ``outputs``, this process's vectors by name.

        ``inputs`` is what the collator laid out, ``layers`` how many layers' vectors are side by
        side, ``step`` the number of the optimiser step, for the message of a ``DataError``: a value
        that is not finite stops the training.
        """
        with torch.autocast(_device(outputs), enabled=False):
            sizes = inputs["sizes"]
            vectors = {n: gathered(values.float(), sizes[n]) for n, values in outputs.items()}
            batch = self._batch(vectors, inputs, layers)
            value = self.loss.over(batch)
            penalties = self._penalties(batch)
            if penalties:
                self.note(self.loss.noted, value)
            total: Tensor = sum(penalties.values(), start=value)
        if not torch.isfinite(total):
            names = inputs["ids"]["query"] or inputs["ids"]["document"]
            raise DataError(
                f"training step {step}: the loss is {total.item()} on the batch of "
                f"{', '.join(names[:8])}{' ...' if len(names) > 8 else ''}; earlier checkpoints "
                "are kept: lower the learning rate or look at the batch's texts"
            )
        return total

    def _batch(
        self, vectors: Mapping[str, Tensor], inputs: Mapping[str, Any], layers: int
    ) -> VectorBatch:
        if self.live is not None:
            batch = self.live.batch(vectors["query"], inputs["ids"]["query"], cosine=self.cosine)
            return replace(batch, weights=inputs["weights"])
        own = self.loss.batch(vectors, inputs)
        if own is not None:
            return own
        targets = {
            "labels": inputs["labels"],
            "mask": inputs["mask"],
            "positives": inputs["positives"],
            "owners": inputs["owners"],
            "weights": inputs["weights"],
            "teacher": inputs["teacher"],
            "cosine": self.cosine,
            "scoring": self.scoring,
            "features": inputs["features"],
            "ids": inputs["ids"],
        }
        if "pairs" in vectors:
            labels = inputs["labels"]
            matrix = torch.zeros_like(labels).masked_scatter(inputs["places"], vectors["pairs"])
            empty = vectors["pairs"].new_zeros((0, 1))
            sides = vectors.get("query", empty), vectors.get("document", empty)
            return VectorBatch(*sides, matrix=matrix, **targets)
        queries, documents = vectors["query"], vectors["document"]
        if isinstance(self.scoring, TokenScoring) and self.scoring.found and not self._checked:
            self._checked = True
            warn_of_all(self.scoring, documents)
        stacked: Sequence[tuple[Tensor, Tensor]] = ()
        if layers > 1:
            stacked = list(
                zip(queries.chunk(layers, dim=1), documents.chunk(layers, dim=1), strict=True)
            )
            queries, documents = stacked[0]
        further = {}  # the places and the last layer's vectors of what else is encoded as queries
        for name, places in (("answered", "answered_columns"), ("negative_query", "negative_rows")):
            if name in vectors:
                further[name] = inputs[places], vectors[name].chunk(max(1, layers), dim=1)[0]
        taught = inputs.get("teacher_vectors")
        return VectorBatch(
            queries,
            documents,
            layers=tuple(stacked),
            answered=further.get("answered"),
            negative_queries=further.get("negative_query"),
            teacher_vectors=None if taught is None else (taught["query"], taught["document"]),
            **targets,
        )

    def _penalties(self, batch: VectorBatch) -> dict[str, Tensor]:
        if self.regulariser is None:
            return {}
        penalties = self.regulariser(batch.queries, batch.documents, batch.owners)
        for side, penalty in penalties.items():
            self.note(f"loss_sparsity_{side}", penalty)
        for side, vectors in (("query", batch.queries), ("document", batch.documents)):
            if len(vectors):  # live candidates have no documents, masked texts no queries
                self.note(f"active_terms_{side}", active_terms(vectors))
        return penalties

    def note(self, name: str, value: Tensor) -> None:
        """Add to the mean that the next log line reports."""
        total, count = self.parts.get(name, (torch.zeros((), device=value.device), 0))
        self.parts[name] = (total + value.detach(), count + 1)

    def report(self) -> dict[str, float]:
        """Return the means since the last call, and the notes of the loss and the regulariser."""
        means = {name: float(total) / count for name, (total, count) in self.parts.items()}
        self.parts = {}
        means |= {name: float(value) for name, value in self.loss.notes().items()}
        if self.regulariser is not None:
            means |= self.regulariser.notes()
        return means


def warn_of_all(scoring: TokenScoring, documents: Tensor) -> None:
    """Log a warning where each query token finds all of a batch's document tokens."""
    count = int(tokens_of(documents).sum())
    if count <= scoring.found:
        log.warning(
            "scoring: xtr: each token finds %s tokens and the first batch's documents have %s, so "
            "all are found and this is mean_max_sim; set xtr_top_k below, or enlarge the batch",
            f"{scoring.found:,}", f"{count:,}",
        )  # fmt: skip


def _device(outputs: Mapping[str, Tensor]) -> str:
    return next(iter(outputs.values())).device.type
