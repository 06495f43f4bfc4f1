"""Momentum queue: the vectors of earlier batches and augmented texts as further negatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, get_args

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.batches.processes import gathered, shares, world
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses import USUAL
from sluice.training.losses.composed.members import Wrapping, of_vectors, plain_inside
from sluice.training.losses.math.reduction import refuse_idle, width_of
from sluice.training.losses.own.momentum_keys import (
    KeyEncoder,
    Mode,
    Pairs,
    VectorQueue,
    augmented,
    codes,
    count_tokens,
    tokens_of,
)
from sluice.training.protocol import Features, Side

KEY, QUEUE = "key.", "queue."  # before the names of these parts' tensors


@dataclass(eq=False)
@checked("momentum_queue.")
class MomentumQueue(Wrapping):
    """The mean of a loss over several views of a batch, each with a queue of earlier vectors.

    Views: query to document, and with ``symmetric`` document to query; each against the batch's
    vectors and against the key encoder's vectors of its augmented texts; ``intra`` adds query to
    augmented query and document to augmented document. Every view has the queue of its targets
    after the batch's: ``size`` vectors of the latest pairs, from the trained encoder for plain
    texts and from the key encoder for augmented ones, none with a gradient. The oldest go first.

    The key encoder starts as a copy and follows by ``k <- momentum k + (1 - momentum) q`` after
    each step, without dropout. ``modes`` are those of ``momentum_keys``, one a step in turn, at
    ``rate``; without any there is neither a key encoder nor an augmented view. ``guard`` masks a
    queued pair that shares the query, or whose document is relevant to the query, by ids.

    The inner loss is by default InfoNCE at temperature 0.07 (CoCoSoDa's released code multiplies
    by 20 once more: an effective 0.0035). ``size: 0, modes: [], symmetric: false`` is the inner
    loss.
    """

    summary = "queues of earlier batches, a momentum encoder, soft augmentation"
    paper = "He et al. 2020 (MoCo); Shi et al. 2023 (CoCoSoDa), section 3.3"

    called: ClassVar[str] = "momentum_queue"
    usual: ClassVar[Mapping[str, Any]] = {**USUAL, "temperature": 0.07}
    trains: ClassVar[tuple[str, ...]] = ("dense", "sparse")

    size: Annotated[int, Ge(0), "Vectors in the queues; 0: none."] = 1024
    momentum: Annotated[
        float, Interval(ge=0, le=1), "How slowly the key encoder follows the trained one."
    ] = 0.999
    modes: Annotated[tuple[Mode, ...], "The augmentations, one a step in turn: 0 to 3."] = (0, 3)
    rate: Annotated[
        float, Interval(ge=0, le=1), "The share of a text's tokens that an augmentation changes."
    ] = 0.1
    symmetric: Annotated[bool, "Whether document to query is learnt too."] = True
    intra: bool = False
    guard: bool = True

    def __post_init__(self) -> None:
        Wrapping.__post_init__(self)
        self.modes = tuple(self.modes)
        plain_inside(self, "the queue's vectors are further columns of the matrix")
        strange = [mode for mode in self.modes if mode not in get_args(Mode)]
        if strange:
            raise ConfigError(f"momentum_queue.modes: {strange[0]!r}, expected some of 0, 1, 2, 3")
        if not self.modes:
            because = (
                "without modes there is neither an augmented text nor a key encoder; give modes"
            )
            refuse_idle("momentum_queue", self, ["momentum", "rate"], because)
        if not self.size:
            refuse_idle("momentum_queue", self, ["guard"], "the queue is empty; set size")
        if self.intra and not self.modes:
            raise ConfigError("momentum_queue.intra: needs modes, which make the augmented texts")
        self.key: KeyEncoder | None = None
        self.queue: VectorQueue | None = None
        self._masked = 0.0

    def bind(self, encoder: Any, seed: int) -> None:
        """Copy the encoder, where there are modes, and begin with an empty queue."""
        super().bind(encoder, seed)
        names = ["query", "document"]
        if self.modes:
            self.key = KeyEncoder(encoder, tokens_of(encoder))
            names += ["augmented_query", "augmented_document"]
        device = next(encoder.module.parameters()).device
        self.queue = VectorQueue(self.size, width_of(encoder), names, device)
        if self.layers is not None and self.layers(0):
            raise ConfigError(
                "momentum_queue.loss: needs the vectors of layers, which the queue does not hold"
            )

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the mean of the inner loss over the views.

        What the batch adds to the queue waits for ``advance``, so the value does not depend on how
        often it is computed.
        """
        of_vectors(batch, self.called)
        queue = self._queue()
        if batch.queries.shape[1] != queue.dim:
            raise ConfigError(
                f"momentum_queue: vectors of {batch.queries.shape[1]} dimensions, and the queue "
                f"holds {queue.dim}; it must be the outer loss: {{type: momentum_queue, loss: "
                "{type: matryoshka}}"
            )
        vectors = {
            "query": batch.queries.detach(),
            "document": batch.documents.detach()[batch.positives],
        }
        keys: dict[Side, Tensor] = {}
        if self.key is not None:
            keys = self._keys(batch, self.key)
            vectors["augmented_query"] = keys["query"]
            vectors["augmented_document"] = keys["document"][batch.positives]
        pairs = self._pairs(batch)
        allowed = self._allowed(batch, pairs, queue)
        values = [self.inner.over(view) for view in self._views(batch, keys, queue, allowed)]
        queue.stage(vectors, pairs)
        return torch.stack(values).mean()

    def _views(
        self, batch: VectorBatch, keys: Mapping[Side, Tensor], queue: VectorQueue, allowed: Tensor
    ) -> list[VectorBatch]:
        """Return a batch for each view, its targets followed by their queue."""
        turned = swapped(batch)
        views = [with_queue(batch, queue["document"], allowed)]
        if self.symmetric:
            views.append(with_queue(turned, queue["query"], allowed))
        if not keys:
            return views
        # Copies, so that no view changes another.
        documents = batch.with_vectors(
            batch.queries, keys["document"], answered=None, negative_queries=None
        )
        views.append(with_queue(documents, queue["augmented_document"], allowed))
        if self.symmetric:
            queries = turned.with_vectors(turned.queries, keys["query"])
            views.append(with_queue(queries, queue["augmented_query"], allowed))
        if self.intra:
            both = mutual(batch)
            positives = batch.positives
            views.append(
                with_queue(
                    both.with_vectors(batch.queries, keys["query"]),
                    queue["augmented_query"], allowed,
                )
            )  # fmt: skip
            views.append(
                with_queue(
                    both.with_vectors(batch.documents[positives], keys["document"][positives]),
                    queue["augmented_document"], allowed,
                )
            )  # fmt: skip
        return views

    def _keys(self, batch: VectorBatch, key: KeyEncoder) -> dict[Side, Tensor]:
        """Return the key encoder's vectors of the augmented texts of both sides."""
        mode = self.modes[self.step % len(self.modes)]
        features: Mapping[str, Features] = batch.features
        missing = {"query", "document"} - set(features)
        if missing:
            raise ConfigError(f"{self.called}: the batch has no features of {sorted(missing)}")
        counted = count_tokens(features["query"], key.vocabulary)
        counted = counted + count_tokens(features["document"], key.vocabulary)
        counted_everywhere = gathered(counted[None].to(batch.queries.device), [1] * world())
        counted = counted_everywhere.sum(0).cpu()
        key.stage(counted)
        parts = shares(len(batch.queries), world())
        owned = torch.bincount(batch.owners.cpu(), minlength=len(batch.queries)).tolist()
        sizes = {
            "query": [part.stop - part.start for part in parts],
            "document": [sum(owned[part]) for part in parts],
        }
        sides: tuple[Side, Side] = ("query", "document")
        keys: dict[Side, Tensor] = {}
        for side in sides:
            changed = augmented(
                features[side],
                mode,
                key.counts + counted,
                key.tokens,
                rate=self.rate,
                seed=self.seed,
                step=self.step,
                side=side,
            )
            vectors = key.embed(changed, side).to(batch.queries)
            keys[side] = gathered(vectors, sizes[side]).detach()
        return keys

    def _pairs(self, batch: VectorBatch) -> Pairs:
        """Return codes of each row's query and positive, by ids or, without these, by texts."""
        ids = batch.ids
        device = batch.queries.device
        if "query" in ids and "document" in ids:
            positives = [ids["document"][place] for place in batch.positives.tolist()]
            return Pairs(codes(ids["query"]).to(device), codes(positives).to(device))
        nothing = torch.zeros(len(batch.queries), dtype=torch.long, device=device)
        return Pairs(nothing, nothing)

    def _allowed(self, batch: VectorBatch, pairs: Pairs, queue: VectorQueue) -> Tensor:
        """``[B, K]``: whether a queued pair may be a negative of a row's pair."""
        count = len(batch.queries)
        allowed = torch.ones((count, len(queue)), dtype=torch.bool, device=batch.queries.device)
        if not self.guard or not len(queue) or "query" not in batch.ids:
            self._masked = 0.0
            return allowed
        queued = queue.pairs
        allowed &= pairs.queries[:, None] != queued.queries
        allowed &= pairs.documents[:, None] != queued.documents
        names = batch.ids["document"]
        labels = batch.labels[:, : len(names)]
        relevant = batch.ids.get("relevant") or ((),) * count
        for row in range(count):
            own = [names[column] for column in (labels[row] > 0).nonzero()[:, 0].tolist()]
            known = codes(sorted({*own, *relevant[row]})).to(allowed.device)
            allowed[row] &= ~torch.isin(queued.documents, known)
        self._masked = float((~allowed).sum()) / count
        return allowed

    def advance(self, step: int) -> None:
        """Put the step's vectors into the queue and let the key encoder follow."""
        super().advance(step)
        self._queue().push()
        if self.key is not None:
            self.key.follow(self.momentum)

    def state(self) -> dict[str, Tensor]:
        """Return the queue and the key encoder beside the inner loss's tensors."""
        state = super().state()
        state |= {QUEUE + name: value for name, value in self._queue().state().items()}
        if self.key is not None:
            state |= {KEY + name: value for name, value in self.key.state().items()}
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take what ``state`` returned."""
        super().restore(state)
        self._queue().restore(_part(state, QUEUE))
        if self.key is not None:
            self.key.restore(_part(state, KEY))

    def notes(self) -> dict[str, float]:
        """Return how full the queue is, and how many of it a row masks on average."""
        filled = 0 if self.queue is None else len(self.queue)
        return {**super().notes(), "queue_filled": float(filled), "queue_masked": self._masked}

    def _queue(self) -> VectorQueue:
        if self.queue is None:
            raise ConfigError(
                "momentum_queue: has no queue yet; call bind(encoder, seed) before training"
            )
        return self.queue


def _part(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def with_queue(batch: VectorBatch, queued: Tensor, allowed: Tensor) -> VectorBatch:
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
        negative_queries=None,
        layers=(),
    )


def swapped(batch: VectorBatch) -> VectorBatch:
    """Return the batch with first positives as queries, and queries as documents."""
    places = batch.positives
    negative = batch.mask[:, places] & (batch.labels[:, places] <= 0)
    return _square(batch, negative.T, batch.documents[places], batch.queries)


def mutual(batch: VectorBatch) -> VectorBatch:
    """Return rows against rows: negatives where neither's positive is the other's."""
    places = batch.positives
    negative = batch.mask[:, places] & (batch.labels[:, places] <= 0)
    return _square(batch, negative & negative.T, batch.queries, batch.queries)
