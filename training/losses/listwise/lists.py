"""Losses of ordered lists: ListMLE, ListNet, RankNet, ADORE, hinges."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.table import Learnt as Form
from sluice.training.batches.vector_batch import Negatives, VectorBatch
from sluice.training.losses.base import LossBase, taught_by
from sluice.training.losses.math.reduction import (
    Average,
    Group,
    Ranks,
    averaged,
    below,
    check_cut,
    choices,
    group_of,
    hinge,
    lambda_pairs,
    log_shares,
    logistic,
    ordered,
    ordered_pairs,
    pair_sums,
    positions_of,
    ranks_by,
    scale_for,
    temperature_for,
    weighted_mean,
)
from sluice.training.losses.math.teacher_watch import TeacherWatch
from sluice.training.protocol import ScoreMatrix

Order = Literal["labels", "teacher", "columns"]  # what says in which order a list should be


def _order_of(group: Group, by: Order) -> Tensor:
    """Return what the order of each list's cells is read from, ``[B, W]``: the more, the better."""
    if by == "columns":
        return -group.columns.to(group.scores.dtype)
    return group.teacher if by == "teacher" else group.labels


@dataclass(frozen=True, slots=True)
@checked("adore.")
class Adore(LossBase):
    """Mean over pairs with ``y_i > y_j`` of ``|1/i - 1/j| log(1 + exp(-(s_i - s_j)))``.

    i and j are positions in the retrieved list, the order of the columns; positives that were
    appended come after it. Reciprocals beyond ``metric_cut`` are 0, so a pair entirely beyond it
    weighs nothing. ``ranks: scores`` takes the ranks that the scores give now in place of the
    columns: for batches that are not retrieved lists. ``scale`` multiplies the scores; left out it
    is 20 for cosine and 1 for dot products. ``average`` is over each query's pairs, over all
    ``pairs``, or takes a query's ``sum``.

    Made for a frozen index searched with the current queries; documents are not trained. A query of
    whose documents none is a positive, or all are, contributes nothing.
    """

    summary = "lambda-weighted pairs over the live results of a frozen index"
    paper = "Zhan et al. 2021 (ADORE, arXiv 2104.08051)"

    negatives: ClassVar[Negatives] = "own"  # a query's list holds its own candidates

    metric_cut: Annotated[int | None, "Places of the list that count; null: all."] = 200
    ranks: Annotated[
        Ranks, "columns: the order of live candidates; scores: the order of the scores now."
    ] = "columns"
    average: Average = "queries"
    scale: Annotated[float | None, Gt(0)] = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"

    def __post_init__(self) -> None:
        check_cut("adore", self.metric_cut)

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        return self._of(matrix, None)  # column r is position r + 1 of the list

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the loss of the batch; each query's list is its own documents."""
        first = None
        if batch.matrix is None:  # a list begins at the first document that came with its row
            rows = torch.arange(len(batch.queries), device=batch.owners.device)
            own = batch.owners[None, :] == rows[:, None]
            first = own.to(torch.uint8).argmax(dim=1)
        return self._of(batch.score_matrix(), first)

    def _of(self, matrix: ScoreMatrix, first: Tensor | None) -> Tensor:
        group = group_of(matrix.times(scale_for(self.scale, self.similarity)))
        return lambda_pairs(
            group,
            group.labels,
            positions_of(group, self.ranks, first),
            metric_cut=self.metric_cut,
            weights=matrix.weights,
            average=self.average,
        )


@dataclass(frozen=True, slots=True)
@checked("anchored_hinge.")
class AnchoredHinge(LossBase):
    """``hinge + anchor_weight * anchor`` of probabilities f = sigmoid(s).

    hinge: the mean over pairs of which i has the higher grade of ``max(0, margin - (f_i - f_j))``.
    anchor: the mean over documents of ``max(0, (f - c)^2 - h^2)``, whose grade y has the interval
    with the middle ``c = (y + 1/2) / grades`` and half the width ``h = 1 / (2 grades)``. A hinge
    alone leaves every query a scale of its own; so a probability above ``k / grades`` says grade k
    or more, and a threshold means the same for all queries. ``grades`` is how many there are, 0
    included: 2 for labels of 0 and 1. ``anchor_weight`` is what the anchor counts.
    """

    summary = "pairs in order, and each score in the interval of its grade"
    paper = "Zou et al. 2021 (arXiv 2105.11108)"

    forms: ClassVar[tuple[Form, ...]] = ("scores",)  # what it trains
    negatives: ClassVar[Negatives] = "own"  # only the query's own documents have grades

    margin: Annotated[float, Gt(0), "The difference below which a pair counts."] = 0.1
    anchor_weight: Annotated[float, Gt(0)] = 0.7
    grades: Annotated[int, Ge(2), "Grades of the style graded, from 0."] = 2

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        chances = torch.sigmoid(matrix.scores)
        group = group_of(matrix._replace(scores=chances))
        most = float(group.labels.max()) if group.labels.numel() else 0.0
        if most > self.grades - 1:
            raise DataError(
                f"anchored_hinge: a label is {most:g}, and grades: {self.grades} says that the "
                f"highest is {self.grades - 1}; set grades to the number of grades, 0 included"
            )
        margin = chances.new_tensor(self.margin)
        cost = hinge(lambda rows: margin, lambda rows: ordered(group, group.labels, rows))
        sums = pair_sums(group.scores, cost)
        pairs = averaged(sums, ordered_pairs(group, group.labels), matrix.weights, "queries")
        middle = (matrix.labels.clamp(min=0) + 0.5) / self.grades
        outside = ((chances - middle) ** 2 - (0.5 / self.grades) ** 2).clamp(min=0)
        anchor = weighted_mean(outside, matrix.mask, matrix.weights)
        return pairs + self.anchor_weight * anchor


@dataclass(frozen=True, slots=True)
@checked("list_net.")
class ListNet(LossBase):
    """``-mean_i sum_j softmax(y_i / target_temperature)_j log softmax(s_i / t)_j``.

    ``target``: the ``labels``, where a query whose documents all have one grade contributes
    nothing, or a ``teacher``'s scores (then the gradient is that of ``kl_div``). ``temperature`` is
    t; left out it is 0.05 for cosine and 1 for dot products.
    """

    summary = "cross-entropy of the softmax of the grades and that of the scores"
    paper = "Cao et al. 2007, top-one probability"

    target: Literal["labels", "teacher"] = "labels"
    negatives: Negatives = "own"
    temperature: Annotated[float | None, Gt(0)] = None
    target_temperature: Annotated[float, Gt(0), "Divides the labels or the teacher's scores."] = 1.0
    similarity: Literal["auto", "cosine", "dot"] = "auto"
    watch: TeacherWatch = field(
        default_factory=lambda: TeacherWatch("list_net.target_temperature"),
        init=False, repr=False, compare=False,
    )  # fmt: skip

    needs_teacher = taught_by("target")

    def notes(self) -> dict[str, float]:
        """Return the teacher's mean entropy, where one gives the target."""
        return self.watch.notes()

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        group = group_of(matrix, taught="list_net" if self.needs_teacher else None)
        grades = group.teacher if self.needs_teacher else group.labels
        temperature = temperature_for(self.temperature, self.similarity)
        student = log_shares(group.scores / temperature, group.taking)
        shares = log_shares(grades / self.target_temperature, group.taking)
        if self.needs_teacher:
            self.watch.see(shares, group.taking, grades, self.target_temperature)
        target = shares.exp()
        rows = -(target.masked_fill(~group.taking, 0.0) * student).sum(1)
        counts = choices(group.taking)
        if not self.needs_teacher:
            first = grades.masked_fill(~group.taking, -float("inf")).amax(1, keepdim=True)
            counts = counts * (group.taking & (grades < first)).any(1)
        return averaged(rows, counts, matrix.weights, "sum")


@dataclass(frozen=True, slots=True)
@checked("listwise_hinge.")
class ListwiseHinge(LossBase):
    """Sum over i before j of ``max(0, s_j - s_i + (r_j - r_i) margin)``.

    r is a document's place in the list: the number of documents that go strictly before it, so
    those that tie share a place and form no pair. ``order``: the ``teacher``'s scores, the
    ``labels``, or the ``columns``, for groups that are ordered lists. ``average`` takes a query's
    ``sum``, or is over its pairs or those of the batch. ``scale`` multiplies the scores; left out
    it is 20 for cosine and 1 for dot products.
    """

    summary = "margins that grow with the distance of ranks"
    paper = "Liu et al. 2022 (BRIO, arXiv 2203.16804)"

    negatives: ClassVar[Negatives] = "own"  # a list holds the query's own documents

    order: Order = "teacher"
    margin: Annotated[float, Gt(0), "The difference below which a pair counts."] = 0.01
    average: Average = "sum"
    scale: Annotated[float | None, Gt(0)] = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"

    needs_teacher = taught_by("order")

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        scale = scale_for(self.scale, self.similarity)
        group = group_of(
            matrix.times(scale), taught="listwise_hinge" if self.needs_teacher else None
        )
        order = _order_of(group, self.order)
        places = below(group, -order).to(group.scores.dtype)

        def margins(rows: slice) -> Tensor:
            return (places[rows, None, :] - places[rows, :, None]) * self.margin

        cost = hinge(margins, lambda rows: ordered(group, order, rows))
        sums = pair_sums(group.scores, cost)
        return averaged(sums, ordered_pairs(group, order), matrix.weights, self.average)


@dataclass(frozen=True, slots=True)
@checked("rank_net.")
class RankNet(LossBase):
    """Mean over pairs of which i goes before j of ``log(1 + exp(-(s_i - s_j)))``.

    ``order``: the ``labels`` (positives before negatives, higher grades before lower), or the
    ``teacher``'s scores. ``cutoff`` k leaves pairs out of which neither is among the k that score
    highest now. ``average`` is over each query's pairs, over the ``pairs`` of the batch, or takes a
    query's ``sum``. ``scale`` multiplies the scores; left out it is 20 for cosine and 1 for dot
    products. ``negatives`` says what a query is held against, as in ``info_nce``.

    Documents with equal labels, or equal teacher scores, form no pair.
    """

    summary = "logistic loss of pairs in the wrong order"
    paper = "Burges et al. 2005"

    order: Literal["labels", "teacher"] = "labels"
    negatives: Negatives = "own"
    cutoff: Annotated[int | None, Ge(1)] = None
    average: Average = "queries"
    scale: Annotated[float | None, Gt(0)] = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"

    needs_teacher = taught_by("order")

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        taught = "rank_net" if self.needs_teacher else None
        group = group_of(matrix.times(scale_for(self.scale, self.similarity)), taught=taught)
        order = group.teacher if self.needs_teacher else group.labels
        high = group.taking
        counts = ordered_pairs(group, order)
        if self.cutoff is not None:
            high = ranks_by(group.scores, group.taking) <= self.cutoff
            low = group._replace(taking=group.taking & ~high)
            counts = counts - ordered_pairs(low, order)

        def pairs(rows: slice) -> Tensor:
            near = high[rows, :, None] | high[rows, None, :]
            return (ordered(group, order, rows) & near).to(group.scores.dtype)

        sums = pair_sums(group.scores, logistic(pairs))
        return averaged(sums, counts, matrix.weights, self.average)


@dataclass(frozen=True, slots=True)
@checked("list_mle.")
class ListMLE(LossBase):
    """``-mean_i sum_r w_r log[exp(s_r) / (exp(s_r) + sum_(j after r) exp(s_j))]``, best first.

    ``order``: the ``labels``, the ``teacher``'s scores, or the ``columns``, for groups that are
    ordered lists. Documents that tie go in any order: each is held against those after all of its
    equals, so the last of them add nothing, and one positive with its negatives is
    ``localized_softmax``. ``position_aware`` (p-ListMLE, Lan et al. 2014) sets
    ``w_r = 2^(n - r) - 1`` over their sum, equals sharing the mean of their places; else w is 1.
    ``temperature`` divides the scores: left out it is 0.05 for cosine and 1 for dot products.

    A query whose documents all tie contributes nothing.
    """

    summary = "likelihood of the right order; `position_aware` weighs the top"
    paper = "Xia et al. 2008; Lan et al. 2014 (p-ListMLE)"

    order: Order = "labels"
    position_aware: bool = False
    negatives: Negatives = "own"
    temperature: Annotated[float | None, Gt(0)] = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"

    needs_teacher = taught_by("order")

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        temperature = temperature_for(self.temperature, self.similarity)
        group = group_of(
            matrix.divided_by(temperature), taught="list_mle" if self.needs_teacher else None
        )
        order = _order_of(group, self.order)
        descent, sequence = (-order).masked_fill(~group.taking, torch.inf).sort(dim=1, stable=True)
        sizes = group.taking.sum(1, keepdim=True)
        begins = torch.searchsorted(descent, descent)
        ends = torch.searchsorted(descent, descent, right=True)
        followed = ends < sizes  # by a document that does not tie
        # A finite floor: inf - inf has no gradient.
        floor = torch.finfo(group.scores.dtype).min / 2
        best_first = group.scores.masked_fill(~group.taking, floor).gather(1, sequence)
        suffix = best_first.flip(1).logcumsumexp(1).flip(1)
        after = suffix.gather(1, ends.clamp(max=suffix.shape[1] - 1))
        lead = (best_first - after).masked_fill(~followed, 0.0)
        terms = -logsigmoid(lead).masked_fill(~followed, 0.0)
        if self.position_aware:
            terms = terms * _place_weights(begins, ends, sizes, terms)
        return averaged(terms.sum(1), followed.any(1).long(), matrix.weights, "sum")


def _place_weights(begins: Tensor, ends: Tensor, sizes: Tensor, like: Tensor) -> Tensor:
    """``[B, L]``: ``2^(n - r) - 1`` over its sum, as the mean of the places from begin to end."""
    places = torch.arange(1, like.shape[1] + 1, device=like.device)
    # Over 2^n, so that long lists do not overflow.
    weights = torch.exp2(-places.to(like.dtype)) - torch.exp2(-sizes.to(like.dtype))
    weights = weights.clamp(min=0.0)
    sums = pad(weights.cumsum(1), (1, 0))
    means = (sums.gather(1, ends) - sums.gather(1, begins)) / (ends - begins).clamp(min=1)
    return means / weights.sum(1, keepdim=True).clamp(min=torch.finfo(like.dtype).tiny)
