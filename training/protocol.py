"""The protocols of what can be trained, and of a loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from sluice.encoders.foundation.token_vectors import TokenSequences

if TYPE_CHECKING:
    from torch import Tensor, nn

Side = Literal["query", "document"]
Similarity = Literal[
    "cosine", "dot", "max_sim", "mean_max_sim", "q_net", "attention", "ngrams", "identifiers"
]
Features = dict[str, "Tensor"]


class DevMeasures(dict[str, float]):
    """What a dev evaluation returns, with the first measure's value of every query.

    ``by_query`` is ``[queries]``, in the same order at every call; it tells whether a difference of
    the means is more than chance. A plain mapping of means will do where it is not known.
    """

    def __init__(self, means: Mapping[str, float], by_query: Sequence[float]) -> None:
        super().__init__(means)
        self.by_query = tuple(by_query)


class Trainable(Protocol):
    """An encoder whose parameters can be trained in place."""

    @property
    def module(self) -> nn.Module:
        """All parameters, as one module."""
        ...


@runtime_checkable
class BiEncoder(Trainable, Protocol):
    """Encodes queries and documents apart: dense ``[n, dim]`` or sparse ``[n, vocab]`` vectors.

    Or one vector a token, ``[n, L, dim]``, where ``similarity`` is ``max_sim``: zeros are
    padding, and L may be another at each call. Or, where it is ``q_net``, documents ``[n, dim]``
    and queries ``[n, width]`` that are networks over them. Or, where it is ``attention``, queries
    ``[n, dim]`` and documents ``[n, k, dim]``, where zeros are none.
    """

    @property
    def similarity(self) -> Similarity:
        """What turns two vectors into a score."""
        ...

    def tokenize(self, texts: Sequence[str], side: Side) -> Features:
        """Return one padded batch of features for the texts."""
        ...

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return float32 vectors ``[n, dim]`` or ``[n, L, dim]``, through which gradients flow."""
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


@runtime_checkable
class DrawsByEpoch(Protocol):
    """A collator whose batches differ from epoch to epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next batches."""
        ...


@runtime_checkable
class SpanWriter(Trainable, Protocol):
    """Writes spans of documents for a query, or identifiers, and has no vectors (SEAL, DSI)."""

    def tokenize(self, texts: Sequence[str], side: Side) -> Features:
        """Return one padded batch of features for queries."""
        ...

    def encode_documents(self, texts: Sequence[str]) -> TokenSequences:
        """Return the token ids of documents."""
        ...

    def terms(self, columns: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of spans."""
        ...

    def span_logits(self, features: Features, spans: Tensor) -> Tensor:
        """Return logits ``[n * s, L, vocabulary]`` of the tokens of spans ``[n, s, L]``."""
        ...


@runtime_checkable
class ListWriter(Trainable, Protocol):
    """Writes the order of a query's documents, and scores no document alone."""

    @property
    def window(self) -> int:
        """The most documents of a prompt; 0: any number."""
        ...

    def tokenize_lists(self, lists: Sequence[tuple[str, Sequence[str]]]) -> Features:
        """Return one padded batch of features for queries and documents as they are shown."""
        ...

    def answer(
        self, query: str, shown: Sequence[str], order: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Return the tokens to write of an order of places, and the rank each is of, or 0."""
        ...

    def answer_logits(self, features: Features, answers: Tensor) -> Tensor:
        """Return logits ``[n, L, vocabulary]`` of the tokens of answers ``[n, L]``."""
        ...


Trained: TypeAlias = BiEncoder | PairEncoder | SpanWriter | ListWriter
WithoutTerms: TypeAlias = PairEncoder | SpanWriter | ListWriter


class ScoreMatrix(NamedTuple):
    """Scores of queries and documents, and what each cell means to a loss.

    ``scores``, ``labels`` and ``teacher`` are ``[B, N]`` floats (B queries, N documents; the
    teacher is NaN where it has no score), ``mask`` ``[B, N]`` is True where a cell takes part,
    ``weights`` ``[B]`` weigh the queries.
    """

    scores: Tensor
    labels: Tensor
    mask: Tensor
    weights: Tensor | None
    teacher: Tensor | None

    def times(self, factor: float) -> ScoreMatrix:
        """Return the matrix with its scores multiplied."""
        return self._replace(scores=self.scores * factor)

    def divided_by(self, divisor: Tensor | float) -> ScoreMatrix:
        """Return the matrix with its scores divided."""
        return self._replace(scores=self.scores / divisor)

    def less(self, shift: Tensor) -> ScoreMatrix:
        """Return the matrix with ``shift`` ``[N]`` taken from its scores."""
        return self._replace(scores=self.scores - shift)


class Loss(Protocol):
    """A function of a score matrix: the same for dense, sparse and cross-encoders.

    ``sluice.training.losses.base.LossBase`` adds everything else that a loss may ask for, as typed
    attributes with defaults; it is best to subclass it. A loss that does not may still have any of
    those hooks, among them ``over(batch: VectorBatch)`` in place of ``__call__``.
    """

    def __call__(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """Return the scalar loss of a ``ScoreMatrix``; without a mask all cells count."""
        ...
