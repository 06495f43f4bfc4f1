"""Losses of a teacher's scores, KL and MarginMSE; and of corners that are equally far apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.table import Learnt
from sluice.encoders.tuning.learning import APART, SCORED
from sluice.training.batches.vector_batch import Negatives, VectorBatch
from sluice.training.losses.base import LossBase, Want
from sluice.training.losses.distillation.vectors import (
    Sides,
    mean_over_texts,
    teacher_of,
    vectors_of,
)
from sluice.training.losses.math.reduction import (
    Average,
    averaged,
    choices,
    divergence,
    group_of,
    log_shares,
    scale_for,
    temperature_for,
    width_of,
)
from sluice.training.losses.math.teacher_watch import TeacherWatch
from sluice.training.protocol import ScoreMatrix, Side


@dataclass(frozen=True, slots=True)
@checked("kl_div.")
class KLDiv(LossBase):
    """``mean_i sum_j P_ij log(P_ij / p_ij)``, P = softmax(T / teacher_temperature), p of s / t.

    ``temperature`` is t; left out it is 0.05 for cosine, 1 for dot products and MaxSim, and 1/32
    for mean MaxSim and XTR. ``direction:
    reverse`` is KL(p || P), which seeks the teacher's mode. ``rescaled`` multiplies by t^2, so that
    the gradient keeps its size when t grows (Hinton et al. 2015). The distributions are over the
    documents of a query that the teacher scored; a query with fewer than two contributes nothing.

    ``negatives`` other than ``own`` compares a query with documents of other queries too: the
    teacher, one or several encoders (dense, splade, tokens, bm25), scores all pairs of each batch.
    """

    summary = "the student's distribution over a group drawn to the teacher's"
    paper = "Hinton et al. 2015; SPLADE"

    temperature: Annotated[float | None, Gt(0)] = None
    teacher_temperature: Annotated[float, Gt(0), "Divides the teacher's scores."] = 1.0
    direction: Literal["forward", "reverse"] = "forward"
    rescaled: bool = False
    negatives: Annotated[
        Negatives,
        "own: documents that the teacher scored; others: it scores all pairs of a batch, "
        "of which these count.",
    ] = "own"
    similarity: Literal["auto", "cosine", "dot"] = "auto"
    watch: TeacherWatch = field(
        default_factory=lambda: TeacherWatch("kl_div.teacher_temperature"),
        init=False, repr=False, compare=False,
    )  # fmt: skip

    @property
    def forms(self) -> tuple[str, ...]:
        """All; those of documents encoded apart where other queries' documents count."""
        return SCORED if self.negatives == "own" else APART

    @property
    def needs_teacher(self) -> bool:
        """Whether the examples bring the scores of their own documents."""
        return self.negatives == "own"

    @property
    def wants(self) -> frozenset[Want]:
        """The teacher's scores of other queries' documents, where these count."""
        return frozenset() if self.negatives == "own" else frozenset({"teacher_matrix"})

    def notes(self) -> dict[str, float]:
        """Return the teacher's mean entropy."""
        return self.watch.notes()

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        temperature = temperature_for(self.temperature, self.similarity)
        group = group_of(matrix, taught="kl_div")
        student = log_shares(group.scores / temperature, group.taking)
        target = log_shares(group.teacher / self.teacher_temperature, group.taking)
        self.watch.see(target, group.taking, group.teacher, self.teacher_temperature)
        sides = (target, student) if self.direction == "forward" else (student, target)
        rows = divergence(*sides, group.taking)
        value = averaged(rows, choices(group.taking), matrix.weights, "sum")
        return value * temperature**2 if self.rescaled else value


@dataclass(frozen=True, slots=True)
@checked("judge_kl.")
class JudgeKL(LossBase):
    """``mean_i [KL(J_i || S_i) + KL(S_i || J_i)] / 2``, J and S softmaxed.

    J are a judge's scores of the query's documents, such as the probability that it answers yes,
    divided by ``judge_temperature``, S the student's by ``temperature``. Left out, the judge's is
    the student's, as in the paper: then the two are to be on one scale, as probabilities and
    cosines are (0.01 to 0.1). A query with fewer than two judged documents contributes nothing.
    """

    summary = "a judge's and the student's distributions drawn to each other"
    paper = "Gu et al. 2025 (UniME-V2, arXiv 2510.13515)"

    needs_teacher: ClassVar[bool] = True
    negatives: ClassVar[Negatives] = "own"  # a judge scores the query's own documents

    temperature: Annotated[
        float, Gt(0), "Divides the student's scores, and the judge's unless told otherwise."
    ] = 0.05
    judge_temperature: Annotated[
        float | None, Gt(0), "Divides the judge's scores; left out, as the student's."
    ] = None
    watch: TeacherWatch = field(
        default_factory=lambda: TeacherWatch("judge_kl.judge_temperature"),
        init=False, repr=False, compare=False,
    )  # fmt: skip

    def notes(self) -> dict[str, float]:
        """Return the judge's mean entropy."""
        return self.watch.notes()

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        group = group_of(matrix, taught="judge_kl")
        student = log_shares(group.scores / self.temperature, group.taking)
        divisor = self.judge_temperature or self.temperature
        judge = log_shares(group.teacher / divisor, group.taking)
        self.watch.see(judge, group.taking, group.teacher, divisor)
        both = divergence(judge, student, group.taking) + divergence(student, judge, group.taking)
        return averaged(both / 2, choices(group.taking), matrix.weights, "sum")


@dataclass(frozen=True, slots=True)
@checked("margin_mse.")
class MarginMSE(LossBase):
    """Mean over pairs (i, j) of a query of ``[(s_i - s_j) - (T_i - T_j)]^2``.

    ``pairs``: every positive against every negative (``positives``), or all ordered pairs of
    documents that the teacher scored (``all``), as SPLADE's trainer has it. ``average`` is over
    each query's pairs, over the ``pairs`` of the batch, or takes a query's ``sum``. ``scale``
    multiplies the student's scores: left out it is 20 for cosine and 1 for dot products, whose size
    is the teacher's to set.

    A query without a pair contributes nothing.
    """

    summary = "differences of scores like the teacher's; `pairs: positives`, `all`"
    paper = "Hofstätter et al. 2020 (arXiv 2010.02666)"

    needs_teacher: ClassVar[bool] = True
    negatives: ClassVar[Negatives] = "own"  # a teacher scores the query's own documents

    pairs: Literal["positives", "all"] = "positives"
    average: Average = "queries"
    scale: Annotated[float | None, Gt(0)] = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        scale = scale_for(self.scale, self.similarity)
        group = group_of(matrix.times(scale), taught="margin_mse")
        gap = group.scores - group.teacher
        if self.pairs == "all":
            count, _, spread = _spread(gap, group.taking)
            # sum_ij (g_i - g_j)^2 = 2 n sum_i (g_i - mean)^2: no pairs, and nothing cancels
            return averaged(2 * count * spread, count * (count - 1), matrix.weights, self.average)
        here, mean, spread = _spread(gap, group.taking & (group.labels > 0))
        there, other, rest = _spread(gap, group.taking & (group.labels <= 0))
        sums = there * spread + here * rest + here * there * (mean - other) ** 2
        return averaged(sums, here * there, matrix.weights, self.average)


def _spread(values: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return each row's count, mean and sum of squared distances from the mean, ``[B]`` each."""
    count = chosen.sum(1).to(values.dtype)
    mean = values.masked_fill(~chosen, 0.0).sum(1) / count.clamp(min=1)
    distance = (values - mean[:, None]).masked_fill(~chosen, 0.0)
    return count, mean, (distance**2).sum(1)


MOST_SLOTS = 8192  # of a simplex
MOST = 50_000  # texts that clusters are made of


@dataclass(eq=False)
@checked("simplex.")
class Simplex(LossBase):
    """Mean over texts of the cross-entropy of ``softmax_k(cos(f(x), p_k) / t)`` with x's class.

    The p_k are the corners of a regular simplex in the d dimensions of a vector: d + 1, or so many
    ``slots``. Fewer lie in the first dimensions; more are projected into d (see ``corners_in``).
    With ``classes`` texts have that many, the first; other slots only push texts away and are there
    for classes that a later training adds, with a larger number. They are the same for every model
    and are not trained, so that models trained one after another, of whatever
    size, lie alike in the space and can search each other's indexes. Classes are clusters of the
    teacher's vectors, less their mean: k-means by cosine that begins at the corners, cluster k
    being corner k, for ``rounds`` rounds at most. With 0 rounds a text's class is the corner that
    the teacher's vector is nearest to, which is the class where the teacher was trained so. A
    cluster without a text stays at its corner. ``temperature`` is t.
    """

    summary = "texts drawn to the corners of a simplex, the same for models that share an index"
    paper = "Biondi et al. 2024 (Stationary Representations, arXiv 2405.02581)"

    forms: ClassVar[tuple[Learnt, ...]] = ("dense",)  # what it trains
    negatives: ClassVar[Negatives] = "own"
    wants: ClassVar[frozenset[Want]] = frozenset({"teacher_vectors"})

    temperature: Annotated[float, Gt(0), "Divides the cosines."] = 0.05
    rounds: Annotated[
        int,
        Ge(0),
        "Rounds of k-means that make the classes; 0: the corner that the teacher's vector "
        "is nearest to.",
    ] = 10
    slots: Annotated[
        int | None,
        Interval(ge=2, le=MOST_SLOTS),
        "Corners, of which some may wait for classes that come later; left out, the vector's "
        "dimensions and 1.",
    ] = None
    classes: Annotated[
        int | None, Ge(2), "Classes that texts have now, the first slots; left out, all."
    ] = None
    sides: Annotated[Sides, "The texts that are drawn to the corners."] = "both"

    def __post_init__(self) -> None:
        self._classes: Classes | None = None
        if self.slots is not None and self.classes is not None and self.classes > self.slots:
            raise ConfigError(
                f"simplex.classes: {self.classes}, and there are {self.slots} slots; expected at "
                "most as many"
            )

    def bind(self, encoder: Any, seed: int) -> None:
        """Place the corners in the encoder's dimensions; classes are then the nearest of them."""
        width = width_of(encoder)
        slots = width + 1 if self.slots is None else self.slots
        if self.classes is not None and self.classes > slots:
            raise ConfigError(f"simplex.classes: {self.classes}; set slots: {self.classes} or more")
        corners = corners_in(slots, width)
        self._classes = Classes.from_arrays(
            corners, np.zeros((1, width), np.float32), corners[: self.classes]
        )

    def bind_teacher(self, vectors: Callable[[], NDArray[np.float32]]) -> None:
        """Find the classes in the teacher's vectors of the training texts."""
        corners = self._bound.corners.numpy()[: self.classes]
        every = vectors()
        self._check_width(every.shape[1])
        mean, centres = clusters(every[:: -(-len(every) // MOST)], corners, self.rounds)
        self._classes = Classes.from_arrays(self._bound.corners.numpy(), mean, centres)

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the mean cross-entropy; a text weighs what its query weighs."""
        corners, own = self._bound.corners.to(batch.queries), vectors_of(batch)
        taught = teacher_of(batch, "simplex")
        if own["query"].shape[1] != corners.shape[1]:
            raise ConfigError(
                f"simplex: its corners have {corners.shape[1]} dimensions and these vectors "
                f"{own['query'].shape[1]}; put it beside losses of shorter vectors, in a sum"
            )

        def entropy(side: Side) -> Tensor:
            logits = normalize(own[side], dim=1) @ corners.T / self.temperature
            return cross_entropy(logits, self.classes_of(taught[side]), reduction="none")

        return mean_over_texts(batch, self.sides, entropy)

    def classes_of(self, taught: Tensor) -> Tensor:
        """Return the class ``[n]`` of texts by the teacher's vectors ``[n, dim]``."""
        self._check_width(taught.shape[1])
        centred = taught - self._bound.mean.to(taught)
        return (centred @ self._bound.centres.to(taught).T).argmax(dim=1)

    @property
    def _bound(self) -> Classes:
        if self._classes is None:
            raise ConfigError("simplex: call bind with the encoder before the first batch")
        return self._classes

    def _check_width(self, width: int) -> None:
        own = self._bound.corners.shape[1]
        if width != own:
            raise ConfigError(
                f"simplex: the encoder's vectors have {own} dimensions and the teacher's {width}; "
                f"set encoder.projection: {width}"
            )


class Classes(NamedTuple):
    """Corners ``[k, dim]``, the mean, and the centres of the classes in use, the first corners'."""

    corners: Tensor
    mean: Tensor
    centres: Tensor

    @classmethod
    def from_arrays(cls, *arrays: NDArray[np.float32]) -> Classes:
        """Return them as tensors."""
        return cls(*map(torch.from_numpy, arrays))


def simplex(corners: int) -> NDArray[np.float32]:
    """Return the corners ``[k, k - 1]`` of a regular simplex on the unit sphere, in float32.

    The cosine of any two is -1 / (k - 1).
    """
    dim = corners - 1
    last = np.full((1, dim), (1 - math.sqrt(corners)) / dim)
    points = np.concatenate([np.eye(dim), last])
    points -= points.mean(axis=0)
    units: NDArray[np.float64] = points / np.linalg.norm(points, axis=1, keepdims=True)
    return units.astype(np.float32)


def corners_in(slots: int, dim: int) -> NDArray[np.float32]:
    """Return the corners ``[slots, dim]`` of length 1.

    Up to ``dim`` + 1 they are a regular simplex in the first dimensions, the others being 0. More
    have no such place: these are the regular simplex in ``slots`` - 1 dimensions, projected by an
    orthonormal map that is the same everywhere; the mean cosine of two stays about
    -1 / (``slots`` - 1), and single ones differ by about 1 / sqrt(``dim``).
    """
    points = simplex(slots)
    if slots <= dim + 1:
        return np.pad(points, ((0, 0), (0, dim + 1 - slots)))
    drawn = np.random.default_rng(13).standard_normal((slots - 1, dim))
    flat = points.astype(np.float64) @ np.linalg.qr(drawn)[0]
    units: NDArray[np.float64] = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    return units.astype(np.float32)


def clusters(
    vectors: NDArray[np.float32], start: NDArray[np.float32], rounds: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the mean ``[1, dim]`` of vectors and the centres ``[k, dim]`` of k-means by cosine.

    A text belongs to the centre with the largest cosine, after the mean is taken off; the first
    of equal ones. A centre becomes the direction of its texts' mean direction.
    """
    mean = vectors.mean(axis=0, keepdims=True, dtype=np.float64)
    units = vectors - mean
    units /= np.linalg.norm(units, axis=1, keepdims=True).clip(1e-12)
    centres, nearest = start.astype(np.float64), np.full(len(units), -1)
    for _ in range(rounds):
        before, nearest = nearest, (units @ centres.T).argmax(axis=1)
        if (before == nearest).all():
            break
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, units)
        lengths = np.linalg.norm(sums, axis=1)
        full = lengths > 0
        centres[full] = sums[full] / lengths[full, None]
    return mean.astype(np.float32), centres.astype(np.float32)
