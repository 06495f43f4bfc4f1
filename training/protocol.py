"""The protocols of what can be trained and of a loss, and a training example."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from sluice.encoders.foundation.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sluice.encoders.foundation.tokens import TokenSequences


Labels = Literal["binary", "grades", "unit"]


class Text(NamedTuple):
    """A text and the id it goes by in its collection."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Example:
    """One query and its documents: positives (label above 0) and hard negatives (label 0).

    Without ``labels`` the first document is the positive and the others are negatives. ``relevant``
    holds the ids of *all* documents known to be relevant to the query, in the batch or not: they
    are never counted as negatives, whichever example brought them. ``scores`` are a teacher's, one
    a document (NaN where it has none), ``weight`` is the example's own, and ``answered`` holds for
    each document the text of a query that it answers (empty where none is known). Examples of
    different ``source`` (the dataset they are from) share no batch. ``negative_queries`` are texts
    of queries that its positives do not answer: negatives on the side of the query.

    Raises ``DataError`` without a positive, or labels, scores or answered queries differ in
    number from the documents.
    """

    query: Text
    documents: tuple[Text, ...]
    labels: tuple[float, ...] = ()
    relevant: frozenset[str] = frozenset()
    scores: tuple[float, ...] = ()
    weight: float = 1.0
    answered: tuple[str, ...] = ()
    source: str = ""
    negative_queries: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.documents:
            raise DataError(f"query {self.query.id!r}: an example needs a positive document")
        if not self.labels:
            object.__setattr__(self, "labels", (1.0,) + (0.0,) * (len(self.documents) - 1))
        if len(self.labels) != len(self.documents):
            raise DataError(
                f"query {self.query.id!r}: {len(self.documents)} documents but "
                f"{len(self.labels)} labels"
            )
        for name, values in (("scores", self.scores), ("answered", self.answered)):
            if values and len(values) != len(self.documents):
                raise DataError(
                    f"query {self.query.id!r}: {len(self.documents)} documents but "
                    f"{len(values)} {name}"
                )
        if not any(label > 0 for label in self.labels):
            raise DataError(
                f"query {self.query.id!r}: no document has a label above 0; drop the query or "
                "give it a positive"
            )

    @property
    def positive(self) -> int:
        """Position of the first positive document."""
        return next(place for place, label in enumerate(self.labels) if label > 0)


def pair_examples(
    queries: Mapping[str, str],
    positives: Mapping[str, Mapping[str, float]],
    texts: Mapping[str, str],
    negatives: Mapping[str, Sequence[str]] | None = None,
    *,
    each: int = 1,
    labels: Labels = "binary",
    answered: Mapping[str, str] | None = None,
    seed: int = 13,
) -> Iterator[Example]:
    """Yield one example for each (query, positive) pair, with the query's negatives beside it.

    With ``each`` above 1 an example holds up to that many positives of its query, dealt out at
    random by ``seed`` and query id, every positive once. Positives are labelled 1 (``binary``), by
    their ``grades``, or by the grade as a share of the largest there is (``unit``). ``answered``
    gives by document id the id of another query that it answers.

    Queries, positives and texts go by id. A document that ``positives`` names with a grade of 0 or
    below is not a positive. Raises ``DataError`` for a query or document without text.
    """
    top = max((g for grades in positives.values() for g in grades.values()), default=1.0)
    scale = {"binary": None, "grades": 1.0, "unit": 1.0 / top if top > 0 else 1.0}[labels]
    for query_id, grades in positives.items():
        order = [doc_id for doc_id, grade in grades.items() if grade > 0]  # the qrels' own
        if not order:
            continue
        relevant = frozenset(order)
        query = Text(query_id, _text(queries, query_id, "query"))
        hard = tuple(
            Text(doc_id, _text(texts, doc_id, "document"))
            for doc_id in (negatives or {}).get(query_id, ())
        )
        if each > 1:
            random.Random(f"{seed}:{query_id}").shuffle(order)
        for start in range(0, len(order), each):
            chosen = order[start : start + each]
            own = tuple(Text(doc_id, _text(texts, doc_id, "document")) for doc_id in chosen)
            graded = [1.0 if scale is None else grades[doc_id] * scale for doc_id in chosen]
            documents = (*own, *hard)
            yield Example(
                query,
                documents,
                (*graded, *(0.0 for _ in hard)),
                relevant,
                answered=_answered(documents, query_id, answered, queries),
            )


def _answered(
    documents: Sequence[Text],
    query_id: str,
    answered: Mapping[str, str] | None,
    queries: Mapping[str, str],
) -> tuple[str, ...]:
    if answered is None:
        return ()
    others = [answered.get(document.id, query_id) for document in documents]
    return tuple("" if other == query_id else queries.get(other, "") for other in others)


def _text(texts: Mapping[str, str], key: str, kind: str) -> str:
    try:
        return texts[key]
    except KeyError:
        raise DataError(
            f"{kind} {key!r}: named in the training data, but its text is missing"
        ) from None


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


@runtime_checkable
class LetterWriter(ListWriter, Protocol):
    """A writer of orders whose documents may have letters in place of numbers."""

    @property
    def first_token(self) -> bool | None:
        """Whether they have."""
        ...

    def first_letters(self, query: str, shown: Sequence[str]) -> tuple[int, list[int]]:
        """Return the place of an answer's first letter, and the token of each document's."""
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
