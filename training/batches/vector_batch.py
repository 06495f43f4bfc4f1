"""The batch that a loss over vectors receives: vectors, and what each score means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import normalize

from sluice.training.batches.scoring import Scoring
from sluice.training.protocol import Features, ScoreMatrix

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class VectorBatch:
    """The vectors of one batch, with gradients, and what each cell of their score matrix means.

    ``queries`` ``[B, dim]`` and ``documents`` ``[N, dim]`` are float32, as the encoder gave them
    (of a cross-encoder they are there only for a loss with ``texts``). With ``scoring`` that makes
    the scores, of token vectors ``[B, Lq, dim]`` and ``[N, Ld, dim]``, where ``cosine`` says that
    each token's has length 1, or of q-nets ``[B, width]``. ``labels``, ``mask`` and ``teacher``
    (NaN where it has no score; None without one) are as wide as ``scores()``: N, or N + 2B with
    ``same_side``; ``weights`` ``[B]``, ``positives`` ``[B]`` and ``owners`` ``[N]`` are the columns
    of the first positives and the row each document came with.

    ``layers`` holds (queries, documents) of the layers that the loss asked for by ``layers(step)``,
    the last first, ``teacher_vectors`` a teacher's vectors of both for a loss with that hook.
    ``answered`` is, for a loss with ``wants_answered``, the columns of documents and the vectors of
    a query that each answers. ``negative_queries`` is, for a loss with ``wants_negative_queries``,
    rows ``[n]`` and the vectors ``[n, dim]`` of queries that those rows' positives do not answer.
    ``features`` are the token ids and masks of both sides. ``matrix``
    replaces the product of the vectors where scores come from elsewhere (a cross-encoder's logits,
    candidates of a frozen index). ``memo`` is what a loss made of ``features`` and keeps for the
    same batch over other vectors.
    """

    queries: Tensor
    documents: Tensor
    labels: Tensor
    mask: Tensor
    positives: Tensor
    owners: Tensor
    weights: Tensor | None = None
    teacher: Tensor | None = None
    cosine: bool = False
    scoring: Scoring | None = None
    layers: tuple[tuple[Tensor, Tensor], ...] = ()
    answered: tuple[Tensor, Tensor] | None = None
    negative_queries: tuple[Tensor, Tensor] | None = None
    teacher_vectors: tuple[Tensor, Tensor] | None = None
    features: Mapping[str, Features] = field(default_factory=dict)
    matrix: Tensor | None = None
    ids: Mapping[str, Any] = field(default_factory=dict)
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def same_side(self) -> bool:
        """Whether query-query and positive-positive cells follow the documents'."""
        return self.matrix is None and self.labels.shape[1] > len(self.documents)

    def scores(self) -> Tensor:
        """Return the score matrix ``[B, N]``, or ``[B, N + 2B]`` with ``same_side``."""
        if self.matrix is not None:
            return self.matrix
        if self.scoring is not None:
            return self.scoring.scores(self.queries, self.documents, unit=self.cosine)
        return score_matrix(
            self.queries,
            self.documents,
            cosine=self.cosine,
            positives=self.positives if self.same_side else None,
        )

    def score_matrix(self) -> ScoreMatrix:
        """Return the score matrix with what each of its cells means."""
        return ScoreMatrix(self.scores(), self.labels, self.mask, self.weights, self.teacher)

    def with_vectors(self, queries: Tensor, documents: Tensor, **changes: Any) -> VectorBatch:
        """Return the same batch over other vectors (a slice of them, another layer's)."""
        return replace(self, queries=queries, documents=documents, matrix=None, **changes)


def score_matrix(
    queries: Tensor, documents: Tensor, *, cosine: bool, positives: Tensor | None = None
) -> Tensor:
    """Return ``[B, N]`` scores of queries ``[B, dim]`` and documents ``[N, dim]``.

    ``positives`` (column of each query's positive) appends the query-query and positive-positive
    scores, as ``sluice.training.batches.targets`` lays them out.
    """
    if cosine:
        queries, documents = normalize(queries, dim=1), normalize(documents, dim=1)
    scores = queries @ documents.T
    if positives is None:
        return scores
    own = documents[positives]
    return torch.cat([scores, queries @ queries.T, own @ own.T], dim=1)
