"""Losses of pairs: BCE and BiXSE judge each alone; PSL, soft top-k and STAR compare two."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Gt
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.table import Learnt as Form
from sluice.training.batches.vector_batch import Negatives
from sluice.training.losses.base import LossBase, taught_by
from sluice.training.losses.math.reduction import (
    SoftTarget,
    check_target,
    floor_of,
    mean_by_row,
    refuse_idle,
    scale_for,
    soft_labels,
    temperature_for,
    weighted_mean,
)
from sluice.training.losses.math.teacher_watch import Reliability
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
@checked("bce.")
class BCE(LossBase):
    """Mean over pairs of ``-y log sigmoid(s) - (1 - y) log(1 - sigmoid(s))``.

    y are the ``labels``, in [0, 1], or with ``target`` a teacher's soft labels for the documents it
    scored: ``logits`` the sigmoids of its scores over ``teacher_temperature`` (left out, 1),
    ``probabilities`` its scores as they are. ``temperature`` divides s. ``positive_weight``
    multiplies the first term: with g negatives to a positive, g balances the two.
    """

    summary = "cross-entropy of each pair alone, against labels or a teacher's (`target: logits`)"
    paper = "Nogueira and Cho 2019 (arXiv 1901.04085)"

    forms: ClassVar[tuple[Form, ...]] = ("scores",)  # what it trains
    negatives: ClassVar[Negatives] = "own"  # only the query's own documents are judged

    positive_weight: Annotated[float, Gt(0)] = 1.0
    temperature: Annotated[float, Gt(0), "Divides the scores."] = 1.0
    target: Annotated[
        SoftTarget, "Labels, or a teacher's: sigmoids of its logits, or probabilities."
    ] = "labels"
    teacher_temperature: Annotated[float | None, "Divides the teacher's logits; left out, 1."] = (
        None
    )

    def __post_init__(self) -> None:
        check_target("bce", self.target, self.teacher_temperature)

    needs_teacher = taught_by("target")

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        cells = binary_cross_entropy_with_logits(
            matrix.scores / self.temperature,
            soft_labels("bce", matrix, self.target, self.teacher_temperature),
            reduction="none",
            pos_weight=matrix.scores.new_tensor(self.positive_weight),
        )
        return weighted_mean(cells, matrix.mask, matrix.weights)


LOWEST_GAP = -1 + 1e-4  # relu is log(0) at -1, atan the log of a negative number below -1.557


@dataclass(frozen=True, slots=True)
@checked("psl.")
class PSL(LossBase):
    """``mean_i log sum_n exp(phi(d_in) / t)`` over gaps ``d_in = (s_in - s_i+) / scale``.

    ``activation`` is phi: ``tanh`` is log(tanh(d) + 1), ``relu`` log(relu(d + 1)) and ``atan``
    log(atan(d) + 1); with phi(d) = d this is InfoNCE without the positive in the sum. On gaps in
    [-1, 1] each lies between the indicator of a mistake and the exponential; cosine scores and a
    ``scale`` of 2 keep them there. Below -1, where relu and atan are not defined, their gaps are
    held just above it and give no gradient. ``temperature`` is t.

    ``method: rows`` is the mean over queries above, ``pairs`` the log of the mean of
    ``exp(phi / t)`` over all pairs of the batch. Several positives of a query are averaged; a query
    without negatives contributes nothing.
    """

    summary = "softmax loss with tanh, relu or atan in place of exp"
    paper = "Yang et al. 2024 (PSL)"

    activation: Literal["tanh", "relu", "atan"] = "tanh"
    method: Literal["rows", "pairs"] = "rows"
    temperature: Annotated[float, Gt(0), "Divides the scores."] = 0.05
    scale: Annotated[float, Gt(0), "Multiplies the scores."] = 2.0
    similarity: Literal["auto", "cosine", "dot"] = "cosine"
    negatives: Negatives = "all"

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        scores, labels, mask, weights, _ = matrix
        rows, columns = (mask & (labels > 0)).nonzero(as_tuple=True)
        pairs = (mask & (labels <= 0))[rows]  # [P, N]
        gaps = (scores[rows] - scores[rows, columns][:, None]).masked_fill(~pairs, 0.0) / self.scale
        logs = (surrogate(gaps, self.activation) / self.temperature).masked_fill(
            ~pairs, floor_of(scores)
        )
        some = pairs.any(1)
        if self.method == "rows":
            each = logs.logsumexp(1).masked_fill(~some, 0.0)
            means, present = mean_by_row(each[some], rows[some], len(labels))
            return weighted_mean(means, present, weights)
        return _log_mean(logs, pairs, None if weights is None else weights[rows])


def surrogate(gaps: Tensor, activation: Literal["tanh", "relu", "atan"]) -> Tensor:
    """Return phi of the gaps: the logarithm of the surrogate of their exponential."""
    if activation == "tanh":
        return math.log(2) + logsigmoid(2 * gaps)  # log(tanh(d) + 1), without cancellation
    clamped = gaps.clamp(min=LOWEST_GAP)
    return (clamped if activation == "relu" else clamped.atan()).log1p()


def _log_mean(logs: Tensor, pairs: Tensor, weights: Tensor | None) -> Tensor:
    """Return the log of the weighted mean of ``exp(logs)`` over ``pairs``; 0 without any."""
    share = pairs.to(logs.dtype)
    if weights is not None:
        share = share * weights.to(logs.dtype)[:, None]
    used = share > 0
    if not used.any():
        return logs[used].sum()
    return (logs[used] + share[used].log()).logsumexp(0) - share.sum().log()


@dataclass(frozen=True, slots=True)
@checked("soft_top_k.")
class SoftTopK(LossBase):
    """``mean_i -1/|P_i| sum_{p in P_i} log sigmoid(alpha (s_ip / t + c_i))``.

    c is such that the sigmoids of a row sum to ``k`` (``positives``: to the number of the row's
    positives): a positive already well inside the k best is left alone. A row with k documents or
    fewer contributes 0. ``temperature`` t is, left out, 0.05 for cosine and 1 for what is not
    bounded.
    """

    summary = "positives above a threshold that k documents pass"
    paper = "Gupta et al. 2024 (DEXML)"

    k: Annotated[
        Literal["positives"] | int,
        "Documents of a row that count as retrieved, or positives: as many as it has.",
    ] = 5
    alpha: Annotated[float, Gt(0), "The steepness of the soft top k."] = 2.0
    temperature: Annotated[float | None, Gt(0)] = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"
    negatives: Negatives = "all"

    def __post_init__(self) -> None:
        if isinstance(self.k, int) and self.k < 1:
            raise ConfigError(f"soft_top_k.k: {self.k!r}, expected 1 or above, or 'positives'")

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        mask = matrix.mask
        positive = mask & (matrix.labels > 0)
        scaled = matrix.scores / temperature_for(self.temperature, self.similarity)
        scaled = scaled.masked_fill(~mask, 0.0)
        # A row without positives has no loss; any k will do for it.
        size = positive.sum(1).clamp(min=1)
        if self.k != "positives":
            size = size.new_full(size.shape, self.k)
        chosen = soft_top_k(scaled, mask, size, self.alpha)
        rows = positive.nonzero(as_tuple=True)[0]
        means, present = mean_by_row(-chosen[positive], rows, len(matrix.labels))
        return weighted_mean(means, present, matrix.weights)


def soft_top_k(scores: Tensor, mask: Tensor, k: Tensor, alpha: float) -> Tensor:
    """Return ``[B, N]`` ``log sigmoid(alpha (s_ij + t_i))`` where ``sum_j sigmoid(...) = k_i``.

    The sum runs over the cells of ``mask``; others are 0, as is all of a row that has no more than
    k of them (everything is selected). ``scores`` must be finite. The threshold t is found by
    bisection and its gradient by the implicit function theorem: with ``u = g alpha (1 - sigma)``
    and ``v = sigma (1 - sigma)`` it is ``u - v sum(u) / sum(v)``. Gupta et al. 2024 (DEXML).
    """
    value: Tensor = _SoftTopK.apply(scores, mask, k, alpha)  # type: ignore[no-untyped-call]
    return value


def threshold(scores: Tensor, mask: Tensor, k: Tensor, alpha: float) -> Tensor:
    """Return ``[B]``, t with ``sum_j sigmoid(alpha (s_ij + t)) = k`` over the cells of ``mask``.

    Every row must have more cells than k.
    """
    share = k / mask.sum(1)
    offset = (share / (1 - share)).log() / alpha
    limit = torch.finfo(scores.dtype).max
    # With t below no cell exceeds the share that k is of the row, with t above none is less.
    low = offset - scores.masked_fill(~mask, -limit).amax(1)
    high = offset - scores.masked_fill(~mask, limit).amin(1)
    for _ in range(64 if scores.dtype == torch.float64 else 32):
        middle = (low + high) / 2
        chosen = (alpha * (scores + middle[:, None])).sigmoid() * mask
        few = chosen.sum(1) < k
        low, high = torch.where(few, middle, low), torch.where(few, high, middle)
    return (low + high) / 2


class _SoftTopK(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor, k: Tensor, alpha: float) -> Tensor:
        rows = mask.sum(1) > k
        mask = mask & rows[:, None]
        shifted = torch.zeros_like(scores)
        large = scores[rows]
        shift = threshold(large, mask[rows], k.to(scores.dtype)[rows], alpha)
        shifted[rows] = alpha * (large + shift[:, None])
        ctx.save_for_backward(shifted, mask)
        ctx.alpha = alpha
        return logsigmoid(shifted) * mask

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        shifted, mask = ctx.saved_tensors
        direct = gradients[0] * mask * ctx.alpha * (-shifted).sigmoid()
        # v / sum(v) as a softmax: it stays defined where every sigmoid is 0 or 1 in floats.
        spread = (logsigmoid(shifted) + logsigmoid(-shifted)).masked_fill(
            ~mask, torch.finfo(shifted.dtype).min / 2
        )
        moved = spread.softmax(1) * direct.sum(1, keepdim=True)
        return (direct - moved) * mask, None, None, None


@dataclass(frozen=True, slots=True)
@checked("star.")
class STAR(LossBase):
    """Mean over pairs (p, n) of ``log(1 + exp((s_n - s_p) / t))``.

    A query's pairs are its positives with the positives of other queries ("random" negatives) and
    with the hard negatives of any query ("static hard"), all under one common denominator; known
    positives are masked. The paper's scores are dot products without a temperature, which is what
    ``similarity: dot`` gives; for cosine t is 0.05. Weights count a query's pairs.
    """

    summary = "RankNet over static hard and random in-batch pairs, one denominator"
    paper = "Zhan et al. 2021 (STAR)"

    temperature: Annotated[float | None, Gt(0)] = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"
    negatives: Negatives = "all"

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        scores, labels, mask, weights, _ = matrix
        scaled = scores / temperature_for(self.temperature, self.similarity)
        rows, columns = (mask & (labels > 0)).nonzero(as_tuple=True)
        pairs = (mask & (labels <= 0))[rows]  # [P, N]
        gaps = (scaled[rows, columns][:, None] - scaled[rows]).masked_fill(~pairs, 0.0)
        return weighted_mean(-logsigmoid(gaps), pairs, None if weights is None else weights[rows])


SIGLIP_BIAS = -10.0


@dataclass(eq=False)
@checked("bixse.")
class BiXSE(LossBase):
    """Mean over pairs of ``-y log sigmoid(z) - (1 - y) log(1 - sigmoid(z))``, ``z = a s + b``.

    y is the label divided by ``max_grade``: graded relevance, 0 for documents of other queries.
    ``scale`` is where a begins: left out, 20 for cosine and 1 for dot products and logits. a (as
    its logarithm) and b are trained with ``learning_rate`` (None: the encoder's) unless
    ``learn_scale`` or ``learn_bias`` is false. ``bias_init`` is where b begins: ``siglip`` is -10
    (for a scale of 10), ``base_rate`` makes the mean sigmoid of the first batch its mean label, a
    number is itself. Weights count a query's pairs. The log has the expected calibration error of
    sigmoid(z) against y; ``losses.math.teacher_watch`` draws the curve.

    ``target`` other than ``labels`` takes the y of documents that a teacher scored from it:
    ``logits`` are sigmoids of its scores over ``teacher_temperature`` (left out, 1),
    ``probabilities`` its scores as they are.
    """

    summary = "cross-entropy of each pair against a grade in [0, 1], learnt scale and bias"
    paper = "Zhai et al. 2023 (SigLIP); Tsirigotis et al. 2025 (BiXSE)"

    scale: Annotated[float | None, Gt(0)] = None
    learn_scale: Annotated[bool, "Whether the scale is trained."] = True
    learn_bias: Annotated[bool, "Whether the bias is trained."] = True
    bias_init: Literal["base_rate", "siglip"] | float = "base_rate"
    max_grade: Annotated[float, Gt(0), "The grade that counts as 1; labels are divided by it."] = (
        1.0
    )
    similarity: Literal["auto", "cosine", "dot"] = "auto"
    negatives: Negatives = "all"
    learning_rate: Annotated[
        float | None, "The learning rate of the loss's own parameters; null: the trainer's."
    ] = 1e-2
    target: Annotated[
        SoftTarget, "Labels, or a teacher's: sigmoids of its logits, or probabilities."
    ] = "labels"
    teacher_temperature: Annotated[float | None, "Divides the teacher's logits; left out, 1."] = (
        None
    )

    def __post_init__(self) -> None:
        if not (self.learn_scale or self.learn_bias):
            because = "neither scale nor bias is learnt; learn one"
            refuse_idle("bixse", self, ["learning_rate"], because)
        check_target("bixse", self.target, self.teacher_temperature)
        scale = scale_for(self.scale, self.similarity)
        begin = {"siglip": SIGLIP_BIAS, "base_rate": math.nan}  # nan: a first batch decides
        bias = begin[self.bias_init] if isinstance(self.bias_init, str) else self.bias_init
        self._seen = Reliability()
        self.log_scale = nn.Parameter(
            torch.tensor(math.log(scale), dtype=torch.float32), requires_grad=self.learn_scale
        )
        self.bias = nn.Parameter(
            torch.tensor(bias, dtype=torch.float32), requires_grad=self.learn_bias
        )

    needs_teacher = taught_by("target")

    def parameters(self) -> list[nn.Parameter]:
        """Return those of log-scale and bias that are learnt."""
        return [part for part in (self.log_scale, self.bias) if part.requires_grad]

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        return {"log_scale": self.log_scale.detach().clone(), "bias": self.bias.detach().clone()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take up the state a checkpoint kept."""
        self.log_scale.data.copy_(state["log_scale"])
        self.bias.data.copy_(state["bias"])

    def notes(self) -> dict[str, float]:
        """Return scale and bias, and the calibration error of the pairs since the last call."""
        scalars = {"scale": math.exp(self.log_scale.item()), "bias": self.bias.item()}
        error = self._seen.error
        if error is None:
            return scalars
        self._seen = Reliability()
        return {**scalars, "calibration_error": error}

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        scores, counted, weights = matrix.scores, matrix.mask, matrix.weights
        graded = matrix._replace(labels=matrix.labels.to(scores.dtype) / self.max_grade)
        grades = soft_labels("bixse", graded, self.target, self.teacher_temperature)
        grades = grades.masked_fill(~counted, 0.0)
        if grades.numel() and (grades.min() < 0 or grades.max() > 1):
            worst = grades.max() if grades.max() > 1 else grades.min()
            raise DataError(
                f"bixse: a label of {worst.item() * self.max_grade:g}, expected 0 to max_grade = "
                f"{self.max_grade:g}; set max_grade to the highest grade of the data"
            )
        scaled = scores.masked_fill(~counted, 0.0) * self.log_scale.exp()
        if self.bias.isnan():
            share = counted if weights is None else counted * weights[:, None]
            self.bias.data.fill_(base_rate_bias(scaled.detach(), grades, share))
        logits = scaled + self.bias
        share = counted if weights is None else counted * weights[:, None]
        self._seen.add(logits.detach().sigmoid(), grades, share.to(scores.dtype))
        cells = binary_cross_entropy_with_logits(logits, grades, reduction="none")
        return weighted_mean(cells, counted, weights)


def base_rate_bias(scaled: Tensor, grades: Tensor, share: Tensor) -> float:
    """Return b for which the mean of ``sigmoid(scaled + b)`` is the mean grade, by bisection.

    A cell counts ``share`` times. Grades that are all 0 or all 1 are held half a cell away from it.
    """
    used = share > 0
    share, scaled = share[used].double(), scaled[used].double()
    if not len(share):
        return 0.0
    margin = 0.5 / len(share)
    mean = (grades[used].double() * share).sum() / share.sum()
    rate = min(max(mean.item(), margin), 1 - margin)
    odds = math.log(rate) - math.log1p(-rate)
    low, high = odds - scaled.max().item(), odds - scaled.min().item()
    for _ in range(64):
        middle = (low + high) / 2
        below = ((scaled + middle).sigmoid() * share).sum() / share.sum() < rate
        low, high = (middle, high) if below else (low, middle)
    return (low + high) / 2
