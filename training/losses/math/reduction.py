"""From a score matrix to one number: cells that count, pairs, means, soft labels, whitening."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training.protocol import ScoreMatrix

Average = Literal["queries", "pairs", "sum"]


class Group(NamedTuple):
    """The cells that take part, each row's in their order of columns, ``[B, L]`` throughout.

    ``columns`` are those of the full matrix. Where ``taking`` is False the row has ended:
    scores, labels and teacher are 0 there and pass no gradient on.
    """

    scores: Tensor
    labels: Tensor
    teacher: Tensor
    taking: Tensor
    columns: Tensor


def group_of(matrix: ScoreMatrix, *, taught: str | None = None) -> Group:
    """Pack ``[B, N]`` to the width of the row with the most cells.

    For the loss of the name ``taught`` only the cells that the teacher scored (not NaN) take part;
    raises ``DataError`` for a batch without a teacher.
    """
    scores, labels, taking, _, _ = matrix
    teacher = None if taught is None else teacher_scores(taught, matrix.teacher)
    if teacher is not None:
        taking = taking & ~teacher.isnan()
    width = max(1, int(taking.sum(1).max()))
    columns = taking.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :width]
    present = taking.gather(1, columns)

    def packed(values: Tensor) -> Tensor:
        return values.to(scores.dtype).gather(1, columns).masked_fill(~present, 0.0)

    judged = torch.zeros_like(scores) if teacher is None else teacher
    return Group(packed(scores), packed(labels), packed(judged), present, columns)


def teacher_scores(name: str, teacher: Tensor | None) -> Tensor:
    """Return the teacher's scores; raises ``DataError`` for a batch that brought none."""
    if teacher is None:
        raise DataError(
            f"{name}: the batch has no teacher's scores; make them with `sluice teach distil` "
            "and name the file under `teacher:`"
        )
    return teacher


def averaged(sums: Tensor, counts: Tensor, weights: Tensor | None, average: Average) -> Tensor:
    """Return the mean of rows from their sums ``[B]`` over ``counts`` ``[B]`` terms.

    ``queries``: each row its own mean, then the mean over rows; ``pairs``: over the terms of all
    rows at once; ``sum``: each row its sum, then the mean over rows. Rows without terms do not
    count, ``weights`` ``[B]`` weigh the rows.
    """
    counts = counts.to(sums.dtype)
    share = counts if average == "pairs" else (counts > 0).to(sums.dtype)
    if weights is not None:
        share = share * weights.to(sums.dtype)
    rows = sums if average == "sum" else sums / counts.clamp(min=1)
    return (rows * share).sum() / share.sum().clamp(min=torch.finfo(sums.dtype).tiny)


def ranks_by(scores: Tensor, taking: Tensor) -> Tensor:
    """``[B, L]``: the place of each cell by descending score, from 1; ties by column."""
    order = scores.detach().masked_fill(~taking, -torch.inf)
    return order.argsort(dim=1, descending=True, stable=True).argsort(dim=1) + 1


def log_shares(scores: Tensor, taking: Tensor) -> Tensor:
    """``[B, L]``: the log of the softmax over the cells that take part, 0 at the others."""
    # A finite floor: the gradient of logsumexp over nothing but -inf is nan.
    filled = scores.masked_fill(~taking, torch.finfo(scores.dtype).min / 2)
    return (filled - filled.logsumexp(1, keepdim=True)).masked_fill(~taking, 0.0)


def divergence(of: Tensor, from_: Tensor, taking: Tensor) -> Tensor:
    """``[B]``: ``sum_j p_j (log p_j - log q_j)`` for p in ``of`` and q in ``from_``, as logs."""
    return (of.exp() * (of - from_)).masked_fill(~taking, 0.0).sum(1)


def choices(taking: Tensor) -> Tensor:
    """``[B]``: 1 for a row with two cells or more; over a single one nothing can be learnt."""
    return (taking.sum(1) > 1).long()


def widened(scores: Tensor) -> Tensor:
    """Return float32 scores for float16 and bfloat16 ones, others as they are."""
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


def floor_of(scores: Tensor) -> float:
    """Return a finite minus infinity: the gradient of -inf - (-inf) would be nan."""
    return torch.finfo(scores.dtype).min / 2


def weighted_mean(values: Tensor, share: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean of finite ``values``, each counted ``share`` times; 0 where all shares are 0.

    ``weights`` ``[B]`` multiply the shares row by row.
    """
    share = share.to(values.dtype)
    if weights is not None:
        rows = weights.to(values.dtype)
        share = share * rows.reshape(-1, *(1,) * (share.dim() - 1))
    return (values * share).sum() / share.sum().clamp(min=torch.finfo(values.dtype).tiny)


def mean_by_row(values: Tensor, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return ``[count]`` means of the values of each row (0 without any) and which rows have some.

    ``rows`` says for every value to which row it belongs.
    """
    sizes = torch.bincount(rows, minlength=count)
    sums = values.new_zeros(count).index_add(0, rows, values)
    return sums / sizes.clamp(min=1), sizes > 0


# What lies in [-1, 1] is too narrow for a softmax or a logistic to saturate. A mean of MaxSim is
# made what the sum over a query of 32 tokens is.
SCALES = {"cosine": 20.0, "mean_max_sim": 32.0}


def scale_for(scale: float | None, similarity: str) -> float:
    """Return the factor of the scores; left out 20 for cosine and 1 for what is not bounded.

    For token vectors that is 1 for MaxSim, a sum over the query's tokens, and 32 for its mean and
    for XTR.
    """
    return SCALES.get(similarity, 1.0) if scale is None else scale


def temperature_for(temperature: float | None, similarity: str) -> float:
    """Return the divisor of the scores; left out 1 over what ``scale_for`` multiplies them by."""
    return 1.0 / scale_for(None, similarity) if temperature is None else temperature


def refuse_idle(called: str, loss: Any, names: Sequence[str], because: str) -> None:
    """Raise ``ConfigError`` for a setting that is not at its default although it does nothing.

    ``loss`` is a dataclass; ``because`` says what the setting is for.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(loss)}
    for name in names:
        value = getattr(loss, name)
        if value != defaults[name]:
            raise ConfigError(
                f"{called}.{name}: {value!r} does nothing: {because}, or leave it out"
            )


def check_positive(loss: str, **settings: float | None) -> None:
    """Raise ``ConfigError`` for a setting that is given and not a number above 0."""
    for name, value in settings.items():
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{loss}.{name}: {value!r}, expected above 0")


SoftTarget = Literal["labels", "logits", "probabilities"]


def check_target(loss: str, target: SoftTarget, temperature: float | None) -> None:
    """Raise ``ConfigError`` for a temperature of a target that has none."""
    check_positive(loss, teacher_temperature=temperature)
    if temperature is not None and target != "logits":
        raise ConfigError(
            f"{loss}.teacher_temperature: divides a teacher's logits, and target is {target}; set "
            "target: logits, or leave it out"
        )


def soft_labels(
    loss: str, matrix: ScoreMatrix, target: SoftTarget, temperature: float | None
) -> Tensor:
    """Return labels ``[B, N]`` with the teacher's where it scored a cell that counts.

    ``logits`` are its sigmoids over ``temperature`` (left out, 1), ``probabilities`` its scores.
    Raises ``DataError`` without a teacher, or for a probability outside [0, 1].
    """
    labels = matrix.labels.to(matrix.scores.dtype)
    if target == "labels":
        return labels
    teacher = teacher_scores(loss, matrix.teacher).to(matrix.scores.dtype)
    known = matrix.mask & teacher.isfinite()
    if target == "logits":
        return torch.where(known, (teacher / (temperature or 1.0)).sigmoid(), labels)
    given = teacher[known]
    if given.numel() and (given.min() < 0 or given.max() > 1):
        worst = given.max() if given.max() > 1 else given.min()
        raise DataError(
            f"{loss}: a teacher's score of {worst.item():g}, expected a probability from 0 to 1; "
            "set target: logits for scores of any size"
        )
    return torch.where(known, teacher, labels)


LEAST = 1e-10  # of the largest variance: what a direction without any has by rounding


def whitened(vectors: NDArray[np.float64], called: str, otherwise: str) -> NDArray[np.float64]:
    """Return ``(x - m) C^(-1/2)`` for vectors ``[n, dim]`` of mean m and covariance C.

    Of all maps that whiten this one moves the vectors least. A direction in which no two differ
    (a layer norm leaves one) stays so. Raises ``DataError``, with the remedy ``otherwise``, where
    n is not above dim: any vectors would end equally far from each other.
    """
    count, dim = vectors.shape
    if count <= dim:
        raise DataError(
            f"{called}: {count} vectors of {dim} dimensions cannot be whitened, which takes more "
            f"than {dim}; add some, or {otherwise}"
        )
    centred = vectors - vectors.mean(axis=0)
    variances, axes = np.linalg.eigh(centred.T @ centred / count)
    full = variances > LEAST * variances[-1]
    result: NDArray[np.float64] = (
        centred @ (axes[:, full] / np.sqrt(variances[full])) @ axes[:, full].T
    )
    return result


def width_of(encoder: Any) -> int:
    """Return how many dimensions an encoder's vectors have."""
    known = hooks_of(encoder).dim
    if isinstance(known, int):
        return known
    device = next(encoder.module.parameters()).device
    features = {k: v.to(device) for k, v in encoder.tokenize(["width"], "query").items()}
    with torch.no_grad(), torch.random.fork_rng():
        return int(encoder.embed(features, "query").shape[-1])


CELLS = 1 << 20  # of [rows, L, L] at a time: 4 MB in float32

# (rows, s_i - s_j [b, L, L]) -> cost of each pair (i, j) and its derivative, 0 where it is none
Cost = Callable[[slice, Tensor], tuple[Tensor, Tensor]]


def pair_sums(scores: Tensor, cost: Cost) -> Tensor:
    """``[B]``: the sum over all (i, j) of a row of a cost of ``s_i - s_j``, scores ``[B, L]``.

    The gradient is worked out in the same pass over a few rows at a time, so memory beyond
    ``[B, L]`` does not grow with B. It cannot be differentiated again.
    """
    sums: Tensor = _PairSums.apply(scores, cost)  # type: ignore[no-untyped-call]
    return sums


def logistic(weights: Callable[[slice], Tensor]) -> Cost:
    """Return the cost ``w_ij log(1 + exp(-(s_i - s_j)))``; ``weights(rows)`` is ``[b, L, L]``."""

    def cost(rows: slice, difference: Tensor) -> tuple[Tensor, Tensor]:
        weight = weights(rows)
        return -weight * logsigmoid(difference), -weight * torch.sigmoid(-difference)

    return cost


def hinge(margins: Callable[[slice], Tensor], pairs: Callable[[slice], Tensor]) -> Cost:
    """Return the cost ``max(0, margin_ij - (s_i - s_j))`` of ``pairs(rows)`` ``[b, L, L]`` bool."""

    def cost(rows: slice, difference: Tensor) -> tuple[Tensor, Tensor]:
        gap = margins(rows) - difference
        short = pairs(rows) & (gap > 0)
        return gap.masked_fill(~short, 0.0), -short.to(gap.dtype)

    return cost


def ordered(group: Group, values: Tensor, rows: slice = slice(None)) -> Tensor:
    """``[b, L, L]``: both cells take part and ``values`` ``[B, L]`` put i strictly before j."""
    taking, value = group.taking[rows], values[rows]
    both = taking[:, :, None] & taking[:, None, :]
    return both & (value[:, :, None] > value[:, None, :])


def below(group: Group, values: Tensor) -> Tensor:
    """``[B, L]``: how many cells of the row have a strictly lower value."""
    low = values.masked_fill(~group.taking, torch.inf).sort(dim=1).values
    return torch.searchsorted(low, values.contiguous())


def ordered_pairs(group: Group, values: Tensor) -> Tensor:
    """``[B]``: how many pairs ``ordered`` finds in each row, without making them."""
    return (below(group, values) * group.taking).sum(1)


class _PairSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, cost: Cost) -> Tensor:
        rows, width = scores.shape
        step = max(1, CELLS // (width * width))
        sums, slopes = scores.new_zeros(rows), torch.zeros_like(scores)
        for start in range(0, rows, step):
            part = slice(start, start + step)
            values, slope = cost(part, scores[part, :, None] - scores[part, None, :])
            sums[part] = values.sum((1, 2))
            slopes[part] = slope.sum(2) - slope.sum(1)
        ctx.save_for_backward(slopes)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (slopes,) = ctx.saved_tensors
        return gradient[:, None] * slopes, None


Ranks = Literal["columns", "scores"]


def lambda_pairs(
    group: Group,
    order: Tensor,
    positions: Tensor,
    *,
    metric_cut: int | None,
    weights: Tensor | None,
    average: Average,
) -> Tensor:
    """Return the average of ``|1/p_i - 1/p_j| log(1 + exp(-(s_i - s_j)))`` where i goes before j.

    ``order`` ``[B, L]`` says what goes before what, ``positions`` ``[B, L]`` are p, from 1.
    Reciprocals beyond ``metric_cut`` are 0; pairs of weight 0 count in the average all the same.
    """
    reciprocal = 1.0 / positions.to(group.scores.dtype)
    if metric_cut is not None:
        reciprocal = reciprocal.masked_fill(positions > metric_cut, 0.0)

    def exchanged(rows: slice) -> Tensor:
        part = reciprocal[rows]
        return (part[:, :, None] - part[:, None, :]).abs() * ordered(group, order, rows)

    sums = pair_sums(group.scores, logistic(exchanged))
    return averaged(sums, ordered_pairs(group, order), weights, average)


def positions_of(group: Group, ranks: Ranks, first: Tensor | None = None) -> Tensor:
    """``[B, L]``: positions from 1, in the given list or by the student's current scores.

    ``first`` ``[B]`` is the column where each row's list begins, 0 unless given.
    """
    if ranks == "scores":
        return ranks_by(group.scores, group.taking)
    start = torch.zeros_like(group.columns[:, 0]) if first is None else first
    return (group.columns - start[:, None]).clamp(min=0) + 1


def check_cut(name: str, metric_cut: int | None) -> None:
    """Raise ``ConfigError`` for a cut below 1."""
    if metric_cut is not None and metric_cut < 1:
        raise ConfigError(f"{name}.metric_cut: {metric_cut!r}, expected 1 or more, or nothing")
