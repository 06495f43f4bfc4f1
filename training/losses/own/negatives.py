"""Losses of further negatives: queries, synthetic ones; a penalty for those that drift away."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize, relu

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses import USUAL
from sluice.training.losses.base import Want
from sluice.training.losses.composed.members import Wrapping, of_vectors, plain_inside
from sluice.training.losses.distillation.scores import KLDiv
from sluice.training.losses.math.reduction import (
    check_positive,
    mean_by_row,
    refuse_idle,
    weighted_mean,
)

Form = Literal["triplet", "softmax"]


@dataclass(eq=False)
@checked("misfits.")
class Misfits(Wrapping):
    """``loss + weight * mean_i L_i``, L_i over query i's positives d and the queries m they misfit.

    ``triplet``: L_i is the mean over all pairs of ``max(0, |d - q_i| - |d - m| + margin)``,
    Euclidean, of vectors of length 1 where cosines are compared. ``softmax``: the mean over d of
    ``log(1 + sum_m exp((s(d, m) - s(d, q_i)) / temperature))``. The m are the examples'
    ``negative_queries``; an example without any has the inner loss alone, by default InfoNCE at
    temperature 0.1. (Ravfogel et al. 2024, Description-based text similarity, arXiv 2305.12517,
    whose code draws one m a step: this is the triplet loss of all of them.)
    """

    summary = "queries that the positive does not answer, as further negatives"
    paper = "Ravfogel et al. 2024 (arXiv 2305.12517)"

    called: ClassVar[str] = "misfits"
    usual: ClassVar[Mapping[str, Any]] = {**USUAL, "temperature": 0.1}
    trains: ClassVar[tuple[str, ...]] = ("dense", "sparse")

    form: Annotated[
        Form, "triplet: by distances and a margin; softmax: the query against its misfits."
    ] = "triplet"
    weight: Annotated[float, Gt(0), "The weight of the misfits' part."] = 0.1
    margin: Annotated[float, Gt(0), "How much farther than the query a misfit has to be."] = 1.0
    temperature: Annotated[float, Gt(0), "Divides the scores in the softmax."] = 0.1

    def __post_init__(self) -> None:
        Wrapping.__post_init__(self)
        self._seen: dict[str, float] = {}
        idle, form = ("temperature", "softmax") if self.form == "triplet" else ("margin", "triplet")
        refuse_idle("misfits", self, [idle], f"it is of form: {form}; set that")

    @property
    def wants(self) -> frozenset[Want]:
        """Negative queries too: without them it is the inner loss."""
        return super().wants | {"negative_queries"}

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the inner loss and the weighted mean over the misfits."""
        value = self.inner.over(batch)
        if batch.negative_queries is None or not len(batch.negative_queries[0]):
            self._seen = {}
            return value
        return value + self.weight * self._misfit(batch, *batch.negative_queries)

    def _misfit(self, batch: VectorBatch, rows: Tensor, misfits: Tensor) -> Tensor:
        """Return the weighted mean of L_i over the queries with misfits, of rows ``[n]``."""
        queries, documents = batch.queries, batch.documents
        if batch.cosine:
            queries, documents, misfits = (
                normalize(vectors, dim=1) for vectors in (queries, documents, misfits)
            )
        width = len(batch.owners)
        own = (batch.owners == rows[:, None]) & batch.mask[rows, :width]  # [n, N]
        positive = batch.labels[rows, :width] > 0
        places, columns = (own & positive).nonzero().unbind(1)  # [P], of misfits and documents
        asking, anchors, against = queries[rows[places]], documents[columns], misfits[places]
        if self.form == "triplet":
            gaps = _distance(anchors, asking) - _distance(anchors, against)  # [P]
            terms, of = relu(gaps + self.margin), rows[places]
        else:
            gaps = (anchors * (against - asking)).sum(1)  # [P]
            documents_of, group = torch.unique(columns, return_inverse=True)
            terms = _log1p_sum_exp(gaps / self.temperature, group, len(documents_of))
            of = batch.owners[documents_of]
        means, present = mean_by_row(terms, of, len(batch.queries))
        value = weighted_mean(means, present, batch.weights)
        self._seen = {
            "misfits_loss": float(value.detach()),
            "misfits_told": float((gaps.detach() < 0).float().mean()),
        }
        return value

    def notes(self) -> dict[str, float]:
        """Return the last batch's loss, and the share of pairs where the right query is nearer."""
        return {**super().notes(), **self._seen}


def _distance(left: Tensor, right: Tensor) -> Tensor:
    distances: Tensor = torch.linalg.vector_norm(left - right, dim=1)
    return distances


def _log1p_sum_exp(values: Tensor, group: Tensor, count: int) -> Tensor:
    """Return ``[count]``: ``log(1 + sum exp)`` over the values of each group."""
    highest = values.detach().new_zeros(count)
    highest = highest.scatter_reduce(0, group, values.detach(), "amax")  # 0 is the 1's own
    sums = (-highest).exp().index_add(0, group, (values - highest[group]).exp())
    total: Tensor = sums.log() + highest
    return total


@dataclass(eq=False)
@checked("clp.")
class CLP(Wrapping):
    """``(1 - w) loss + w mean_j (1 - cos(n_j, r_j))``, j over negatives that answer a query r_j.

    w is ``penalty``. The inner loss is by default InfoNCE at temperature 0.02. A batch without such
    negatives has no penalty; rows weigh their negatives. Yu 2024, arXiv 2412.17364
    (its printed formula has unbalanced brackets; this is what its code computes).
    """

    summary = "a penalty for negatives that drift away from the queries they answer"
    paper = "Yu 2024 (CLP, arXiv 2412.17364)"

    called: ClassVar[str] = "clp"
    usual: ClassVar[Mapping[str, Any]] = {**USUAL, "temperature": 0.02}
    trains: ClassVar[tuple[str, ...]] = ("dense", "sparse")

    penalty: Annotated[float, Interval(ge=0, le=1), "The weight of the penalty."] = 0.1

    def __post_init__(self) -> None:
        Wrapping.__post_init__(self)
        self._seen: tuple[float, int] | None = None

    @property
    def wants(self) -> frozenset[Want]:
        """The queries that negatives answer too, unless the penalty weighs nothing."""
        return super().wants | {"answered"} if self.penalty > 0 else super().wants

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the mix of the inner loss and the penalty."""
        drift, count = self._drift(batch)
        self._seen = float(drift.detach()), count
        return (1 - self.penalty) * self.inner.over(batch) + self.penalty * drift

    def _drift(self, batch: VectorBatch) -> tuple[Tensor, int]:
        """Return the weighted mean of 1 - cos over the answered negatives, and their number."""
        if batch.answered is None:
            return batch.queries.new_zeros(()), 0
        columns, answered = batch.answered
        rows = batch.owners[columns]
        negative = batch.mask[rows, columns] & (batch.labels[rows, columns] <= 0)
        columns, answered, rows = columns[negative], answered[negative], rows[negative]
        if not len(columns):
            return batch.queries.new_zeros(()), 0
        gaps = 1 - cosine_similarity(batch.documents[columns], answered, dim=1)
        share = torch.ones_like(gaps) if batch.weights is None else batch.weights[rows].to(gaps)
        total = share.sum().clamp(min=torch.finfo(gaps.dtype).tiny)
        return (gaps * share).sum() / total, len(columns)

    def notes(self) -> dict[str, float]:
        """Return the last batch's drift and how many negatives answered a query."""
        if self._seen is None:
            return super().notes()
        drift, count = self._seen
        return {**super().notes(), "clp_drift": drift, "clp_answered": float(count)}


log = logging.getLogger("sluice")

ENOUGH = 64  # queries after which a warning says that there was nothing to mix
DISTILLATION = 0.05  # the temperature where none is set


class Mixed(NamedTuple):
    """Each query's pairwise and listwise negative ``[B, dim]``; ``real`` ``[B]``: it has them."""

    pairwise: Tensor
    listwise: Tensor
    real: Tensor


@dataclass(eq=False)
@checked("mixing.")
class Mixing(Wrapping):
    """A contrastive loss with two more negatives a query, mixed from its own hard negatives.

    Pairwise ``normalise(l n_a + (1 - l) n_b)`` of two of them drawn at random, l ~ Beta(2, 2), and
    listwise ``normalise(sum_m a_m n_m)``, a = softmax(sim(q, n_m) / mixing_temperature) over all of
    them. They are two further columns of the score matrix, each query's own, so any loss
    over a score matrix can be inside; focal weights are ``info_nce.focal_gamma``. A query with
    fewer than two hard negatives has none; where no query has two a warning says so. Dot products
    mix without normalising.

    ``distillation`` above 0 adds so much of KL(softmax(T / u) || softmax(s / t)) over the documents
    the teacher scored: t is ``distillation_temperature`` (left out, 0.05), u
    ``distillation_teacher_temperature`` (left out, t). Draws are functions of seed and step.
    """

    summary = "two synthetic negatives per query, mixed from its own; contrastive distillation"
    paper = "KaLM-Embedding-V2 (2025), section 3"

    called: ClassVar[str] = "mixing"
    trains: ClassVar[tuple[str, ...]] = ("dense", "sparse")

    mixing_temperature: Annotated[float, "Of the softmax that mixes a query's hard negatives."] = (
        0.05
    )
    distillation: Annotated[float, Ge(0), "The weight of the teacher's distribution; 0: none."] = (
        0.0
    )
    distillation_temperature: Annotated[
        float | None, "Divides the student's scores; left out, 0.05."
    ] = None
    distillation_teacher_temperature: Annotated[
        float | None, "Divides the teacher's scores; left out, as the student's."
    ] = None

    def __post_init__(self) -> None:
        Wrapping.__post_init__(self)
        plain_inside(self, "the mixed negatives are further columns of the matrix")
        student, teacher = self.distillation_temperature, self.distillation_teacher_temperature
        check_positive(
            "mixing",
            mixing_temperature=self.mixing_temperature,
            distillation_temperature=student,
            distillation_teacher_temperature=teacher,
        )
        if not self.distillation and (student is not None or teacher is not None):
            raise ConfigError(
                "mixing: a temperature of the distillation, which weighs nothing: set distillation "
                "above 0, or leave the temperature out"
            )
        student = DISTILLATION if student is None else student
        self._teacher = KLDiv(student, student if teacher is None else teacher)
        self._queries = self._mixed = 0
        self._teacher.watch.key = "mixing.distillation_teacher_temperature"

    @property
    def needs_teacher(self) -> bool:
        """With distillation, or as the inner loss says."""
        return self.distillation > 0 or super().needs_teacher

    def _count(self, real: Tensor) -> None:
        """Warn once if none of the first queries has two negatives to mix."""
        before, self._queries = self._queries, self._queries + len(real)
        self._mixed += int(real.sum())
        if before < ENOUGH <= self._queries and not self._mixed:
            log.warning(
                "mixing: none of the first %s queries has two hard negatives, so nothing is mixed; "
                "mine two or more for each (negatives.per_query)", self._queries,
            )  # fmt: skip

    def notes(self) -> dict[str, float]:
        """Return the teacher's mean entropy beside the inner loss's notes."""
        return {**super().notes(), **self._teacher.notes()}

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the inner loss over the widened matrix, and the distillation of the plain one."""
        of_vectors(batch, self.called)
        scores = batch.scores()
        value = self.inner.over(self._widened(batch, scores))
        if not self.distillation:
            return value
        taught = self._teacher(scores, batch.labels, batch.mask, batch.weights, batch.teacher)
        return value + self.distillation * taught

    def _widened(self, batch: VectorBatch, scores: Tensor) -> VectorBatch:
        queries = normalize(batch.queries, dim=1) if batch.cosine else batch.queries
        pairwise, listwise, real = mixed_negatives(
            batch,
            temperature=self.mixing_temperature,
            random=np.random.default_rng([self.seed, self.step]),
        )
        self._count(real)
        more = torch.stack([(queries * pairwise).sum(1), (queries * listwise).sum(1)], dim=1)
        teacher = batch.teacher
        if teacher is not None:
            teacher = torch.cat([teacher, teacher.new_full((len(teacher), 2), math.nan)], dim=1)
        return replace(
            batch,
            matrix=torch.cat([scores, more], dim=1),
            labels=torch.cat([batch.labels, torch.zeros_like(more, dtype=batch.labels.dtype)], 1),
            mask=torch.cat([batch.mask, real[:, None].expand(-1, 2)], dim=1),
            teacher=teacher,
        )


def mixed_negatives(
    batch: VectorBatch, *, temperature: float, random: np.random.Generator
) -> Mixed:
    """Mix each query's own hard negatives: those it came with that its row counts as negatives.

    Masked documents take no part. A query with fewer than two has zeros.
    """
    queries, documents = batch.queries, batch.documents
    if batch.cosine:
        queries, documents = normalize(queries, dim=1), normalize(documents, dim=1)
    count, width = len(queries), len(documents)
    rows = torch.arange(count, device=queries.device)
    own = (batch.owners == rows[:, None]) & batch.mask[:, :width] & (batch.labels[:, :width] <= 0)
    real = own.sum(1) > 1
    share = torch.from_numpy(random.beta(2.0, 2.0, size=count)).to(queries)
    order = torch.from_numpy(random.random((count, width))).to(own.device)
    first, second = order.masked_fill(~own, -1.0).topk(min(2, width), dim=1).indices[:, [0, -1]].T
    pairwise = share[:, None] * documents[first] + (1 - share[:, None]) * documents[second]
    scores = (queries @ documents.T / temperature).masked_fill(
        ~own, torch.finfo(queries.dtype).min / 2
    )
    listwise = torch.softmax(scores, dim=1).masked_fill(~own, 0.0) @ documents
    if batch.cosine:
        pairwise, listwise = normalize(pairwise, dim=1), normalize(listwise, dim=1)
    nothing = ~real[:, None]
    return Mixed(pairwise.masked_fill(nothing, 0.0), listwise.masked_fill(nothing, 0.0), real)
