"""What training asks of an encoder and of a loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn

Side = Literal["query", "document"]
Similarity = Literal["cosine", "dot"]
Features = dict[str, "Tensor"]


class Trainable(Protocol):
    """An encoder whose parameters can be trained in place."""

    @property
    def module(self) -> nn.Module:
        """All parameters, as one module."""
        ...


@runtime_checkable
class BiEncoder(Trainable, Protocol):
    """Encodes queries and documents apart: dense ``[n, dim]`` or sparse ``[n, vocab]`` vectors."""

    @property
    def similarity(self) -> Similarity:
        """What turns two vectors into a score."""
        ...

    def tokenize(self, texts: Sequence[str], side: Side) -> Features:
        """Return one padded batch of features for the texts."""
        ...

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return float32 vectors ``[n, dim]`` through which gradients flow."""
        ...


@runtime_checkable
class PairEncoder(Trainable, Protocol):
    """Scores a query and a document together (a cross-encoder)."""

    def tokenize_pairs(self, pairs: Sequence[tuple[str, str]]) -> Features:
        """Return one padded batch of features for (query, document) pairs."""
        ...

    def logits(self, features: Features) -> Tensor:
        """Return raw scores ``[n]`` through which gradients flow."""
        ...


class Loss(Protocol):
    """A function of a score matrix: the same for dense, sparse and cross-encoders.

    ``sluice.training.losses.base.LossBase`` has all that a loss may ask beyond that, as typed
    attributes with defaults; a loss of your own best subclasses it. One that does not may have any
    of its hooks all the same, ``over(batch: VectorBatch)`` in place of ``__call__`` among them.
    """

    def __call__(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """Return the scalar loss.

        ``scores``, ``labels`` and ``teacher`` are ``[B, N]`` floats (B queries, N documents; the
        teacher is NaN where it has no score), ``mask`` ``[B, N]`` says which cells take part,
        ``weights`` ``[B]`` weighs the queries.
        """
        ...
