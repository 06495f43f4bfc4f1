"""Online hard-negative mixing: two synthetic negatives per query, optionally distillation."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import normalize

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.composed.wrapping import Wrapping, of_vectors, plain_inside
from sluice.training.losses.distillation.scores import KLDiv
from sluice.training.losses.math.reduction import check_positive

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
