"""Losses that draw vectors to a teacher's or old ones; lambda distillation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from annotated_types import Gt
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.table import Learnt as Form
from sluice.training.batches.vector_batch import Negatives, VectorBatch
from sluice.training.losses.base import LossBase, Want
from sluice.training.losses.math.reduction import (
    Average,
    Ranks,
    check_cut,
    floor_of,
    group_of,
    lambda_pairs,
    positions_of,
    scale_for,
    weighted_mean,
)
from sluice.training.protocol import ScoreMatrix, Side


@dataclass(frozen=True, slots=True)
@checked("lambda_distil.")
class LambdaDistil(LossBase):
    """Sum over pairs with ``T_i > T_j`` of ``|1/p_i - 1/p_j| log(1 + exp(-(s_i - s_j)))``.

    T are the teacher's scores, of which only the order counts, and p the ranks that the student's
    own scores give now (ties by column), or with ``ranks: columns`` the places in the group.
    ``metric_cut``, ``scale`` and ``average`` are as in ``adore``.
    """

    summary = "the teacher's order, weighted by the student's ranks"
    paper = "Zeng et al. 2022 (CL-DRD, arXiv 2204.13679)"

    needs_teacher: ClassVar[bool] = True
    negatives: ClassVar[Negatives] = "own"  # a teacher scores the query's own documents

    metric_cut: Annotated[int | None, "Places of the list that count; null: all."] = None
    ranks: Annotated[Ranks, "scores: the order of the scores now; columns: of the columns."] = (
        "scores"
    )
    average: Average = "sum"
    scale: Annotated[float | None, Gt(0)] = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"

    def __post_init__(self) -> None:
        check_cut("lambda_distil", self.metric_cut)

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        scale = scale_for(self.scale, self.similarity)
        group = group_of(matrix.times(scale), taught="lambda_distil")
        # In a matrix of all documents a group does not begin in the first column.
        first = group.columns[:, 0] if self.ranks == "columns" else None
        return lambda_pairs(
            group,
            group.teacher,
            positions_of(group, self.ranks, first),
            metric_cut=self.metric_cut,
            weights=matrix.weights,
            average=self.average,
        )


Sides: TypeAlias = Literal["both", "query", "document"]


def vectors_of(batch: VectorBatch) -> dict[Side, Tensor]:
    """Return the vectors that are trained, by side."""
    return {"query": batch.queries, "document": batch.documents}


def teacher_of(batch: VectorBatch, called: str) -> dict[Side, Tensor]:
    """Return the teacher's vectors by side; ``DataError`` for a batch without them."""
    if batch.teacher_vectors is None:
        raise DataError(
            f"{called}: the batch has no teacher's vectors; name a dense encoder under `teacher:`"
        )
    queries, documents = batch.teacher_vectors
    return {"query": queries, "document": documents}


def mean_over_texts(batch: VectorBatch, sides: Sides, value: Callable[[Side], Tensor]) -> Tensor:
    """Return the mean of ``value(side)``, a number for each text; a text weighs like its query."""
    chosen: list[Side] = ["query", "document"] if sides == "both" else [sides]
    values = torch.cat([value(side) for side in chosen])
    if batch.weights is None:
        return weighted_mean(values, torch.ones_like(values))
    shares = {"query": batch.weights, "document": batch.weights[batch.owners]}
    weights = torch.cat([shares[side] for side in chosen])
    return weighted_mean(values, torch.ones_like(values), weights)


@dataclass(frozen=True, slots=True)
class Alignment(LossBase):
    """Mean over texts of ``|f(x) - T(x)|^2`` (``l2``) or ``1 - cos(f(x), T(x))`` (``cosine``).

    T(x) is the vector that ``teacher``, one dense encoder, has for the text. Labels and negatives
    do not count: any texts will do. A student aligned on its queries searches the teacher's
    documents: ``{type: towers, query: student, document: teacher}``. ``sides``: ``query``,
    ``document``, or ``both``. With ``l2`` an encoder whose similarity is the cosine is compared by
    vectors of length 1. Both must have as many dimensions: ``projection`` gives an encoder others.
    """

    summary = "the student's vectors drawn to a teacher's, for towers of different size"
    paper = "Vujanic and Rueckstiess 2025 (LEAF, arXiv 2509.12539)"

    forms: ClassVar[tuple[Form, ...]] = ("dense",)  # what it trains
    negatives: ClassVar[Negatives] = "own"
    wants: ClassVar[frozenset[Want]] = frozenset({"teacher_vectors"})

    distance: Annotated[Literal["l2", "cosine"], "Of the two vectors: l2 (squared), or cosine."] = (
        "l2"
    )
    sides: Annotated[Sides, "The texts that are aligned: queries, documents, or both."] = "both"

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the mean distance; a text weighs what its query weighs."""
        own, goals = vectors_of(batch), teacher_of(batch, "alignment")
        return mean_over_texts(
            batch, self.sides, lambda side: self._gaps(own[side], goals[side], batch.cosine)
        )

    def _gaps(self, vectors: Tensor, goals: Tensor, cosine: bool) -> Tensor:
        """``[n]``: the distance of each vector from its goal."""
        if vectors.shape != goals.shape:
            raise ConfigError(
                f"alignment: the encoder's vectors have {vectors.shape[1]} dimensions and the "
                f"teacher's {goals.shape[1]}; set encoder.projection: {goals.shape[1]}"
            )
        goals = goals.to(vectors)
        if self.distance == "cosine":
            return 1 - cosine_similarity(vectors, goals, dim=1)
        return ((normalize(vectors, dim=1) if cosine else vectors) - goals).square().sum(1)


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
    wants: ClassVar[frozenset[Want]] = frozenset({"teacher_vectors"})

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
