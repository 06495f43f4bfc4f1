"""The softmax loss of positives against negatives, from a score matrix or from vectors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.math.chunked_softmax import chunked_logsumexp
from sluice.training.losses.math.reduction import floor_of, mean_by_row, weighted_mean, widened
from sluice.training.protocol import ScoreMatrix

Cells = tuple[Tensor, Tensor]  # rows and columns of the positives


def contrast(matrix: ScoreMatrix, *, symmetric: bool = False, focal_gamma: float = 0.0) -> Tensor:
    """Return the weighted mean, over rows that have positives, of their softmax loss.

    For one positive p of a row: ``log(exp(s_p) + sum_negatives exp(s_j)) - s_p``; several are
    averaged and a row without negatives contributes 0. ``symmetric`` averages this with the same
    over columns, a column weighing what its positives' rows weigh on average. ``focal_gamma``
    weighs each positive with ``(1 - p)^gamma``, p its softmax probability, as a constant.
    """
    scores, labels, mask, weights, _ = matrix
    cells = _positives(labels, mask, chunk=labels.shape[1])
    negatives = scores.masked_fill(~(mask & (labels <= 0)), floor_of(scores))
    rests = [negatives.logsumexp(dim) for dim in ((1, 0) if symmetric else (1,))]
    return _mean_over_directions(scores[cells], cells, rests, weights, focal_gamma)


def contrast_over(
    batch: VectorBatch,
    temperature: Tensor | float,
    *,
    chunk: int,
    symmetric: bool = False,
    focal_gamma: float = 0.0,
    shift: Tensor | None = None,
) -> Tensor:
    """Return ``contrast`` of ``batch.scores() / temperature - shift``, from the vectors.

    Neither the value nor the gradient holds more of the matrix than ``chunk`` columns (or rows,
    with ``symmetric``) of it.
    """
    queries, documents = widened(batch.queries), widened(batch.documents)
    if batch.cosine:
        queries, documents = normalize(queries, dim=1), normalize(documents, dim=1)
    asking, width = queries / temperature, len(documents)
    labels, mask = batch.labels, batch.mask
    cells = _positives(labels, mask, chunk)
    own = (asking[cells[0]] * documents[cells[1]]).sum(1)
    if shift is not None:
        own = own - shift[cells[1]]

    def rest(left: Tensor, right: Tensor, first: int, shift: Tensor | None = None) -> Tensor:
        def counted(start: int, end: int) -> Tensor:
            columns = slice(first + start, first + end)
            return mask[:, columns] & (labels[:, columns] <= 0)

        return chunked_logsumexp(left, right, counted, chunk=chunk, shift=shift)

    parts = [rest(asking, documents, 0, shift)]
    if batch.same_side:
        positives = documents[batch.positives]
        parts.append(rest(asking, queries, width))
        parts.append(rest(positives / temperature, positives, width + len(queries)))
    rests = [torch.stack(parts).logsumexp(0)]
    if symmetric:
        across = chunked_logsumexp(
            documents,
            asking,
            lambda start, end: (mask[start:end, :width] & (labels[start:end, :width] <= 0)).T,
            chunk=chunk,
        )
        # A column's shift is the same for all of its cells.
        rests.append(across if shift is None else across - shift)
    return _mean_over_directions(own, cells, rests, batch.weights, focal_gamma)


def _positives(labels: Tensor, mask: Tensor, chunk: int) -> Cells:
    places = [
        (mask[:, start : start + chunk] & (labels[:, start : start + chunk] > 0)).nonzero()
        + labels.new_tensor([0, start], dtype=torch.long)
        for start in range(0, labels.shape[1], chunk)
    ]
    rows, columns = torch.cat(places).unbind(1)
    return rows, columns


def _mean_over_directions(
    own: Tensor, cells: Cells, rests: Sequence[Tensor], weights: Tensor | None, gamma: float
) -> Tensor:
    """Average the loss of the positives ``own`` against the rest of their rows, then columns."""
    values = []
    for places, rest in zip(cells, rests, strict=False):
        gap = rest[places] - own
        terms = torch.logaddexp(torch.zeros_like(gap), gap)  # [P], -log of the probability
        if gamma:
            terms = terms * (-torch.expm1(-terms.detach())).pow(gamma)
        means, present = mean_by_row(terms, places, len(rest))
        spread = weights
        if weights is not None and places is not cells[0]:
            spread, _ = mean_by_row(weights.to(own.dtype)[cells[0]], places, len(rest))
        values.append(weighted_mean(means, present, spread))
    return torch.stack(values).mean()
