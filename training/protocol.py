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

    A loss that needs more than scores has ``over(batch: VectorBatch) -> Tensor`` instead or beside.
    What else the Trainer looks for, all optional:

    - ``encoders``: the types it trains, as YAML names them (left out: all)
    - ``negatives``: which documents of the batch a query is held against (``training.batch``);
      ``same_side``: query-query and positive-positive scores as further negatives;
      ``similarity``: ``cosine`` or ``dot`` instead of the encoder's own, and
      ``bound_to(similarity)``, which returns the loss with ``auto`` decided
    - ``needs_teacher``: every example must bring a teacher's scores; ``wants_answered``: queries
      that the negatives answer are encoded too; ``layers(step)``: layers whose vectors it wants
      (numbers from 1, the last first); ``texts``: a cross-encoder's separate vectors of both sides
    - ``bind(encoder, seed)``, once before training, for a loss with state of its own;
      ``bind_counts(counts)``, how often each document stands in the examples in use;
      ``parameters()``, trained with ``learning_rate`` (None: the trainer's);
      ``state()`` and ``restore(state)``, tensors by name, kept in every checkpoint;
      ``advance(step)`` after each optimiser step; ``notes()``, numbers for the journal;
      ``save(folder)``, what belongs beside the trained model
    - ``own_pass(encoder, seed=, sparse=)``, a module and a collator instead of those over queries
      and documents, and ``batch(made, inputs)``, which lays out what that module made; ``noted``,
      the loss's name in the journal beside penalties
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
