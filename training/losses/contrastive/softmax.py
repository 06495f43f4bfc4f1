"""Softmax losses: InfoNCE, decoupled, localised; from a score matrix or from vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn.functional import normalize

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.table import Learnt
from sluice.encoders.tuning.learning import APART, SCORED, SINGLE
from sluice.training.batches.vector_batch import Negatives, VectorBatch
from sluice.training.losses.base import LossBase, Want
from sluice.training.losses.math.chunked_softmax import chunked_logsumexp
from sluice.training.losses.math.reduction import (
    floor_of,
    mean_by_row,
    refuse_idle,
    temperature_for,
    weighted_mean,
    widened,
)
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


@dataclass(frozen=True, slots=True)
@checked("decoupled_softmax.")
class DecoupledSoftmax(LossBase):
    """``mean_i 1/|P_i| sum_{p in P_i} [log(e^{s_ip} + sum_{n not in P_i} e^{s_in}) - s_ip]``.

    For examples that bring several positives: a softmax over all of them pushes the strongest down
    in favour of the others, this one does not. Positives that are known but not in the example are
    masked (``sluice.training.batches.vector_batch``), as the method needs. With one positive it is
    InfoNCE.

    ``temperature`` divides the scores: left out, 0.05 for cosine and 1 for what is not bounded.
    ``focal_gamma`` and ``chunk`` are those of ``info_nce``.
    """

    summary = "each positive against the negatives only, never against its siblings"
    paper = "Gupta et al. 2024 (DEXML)"

    temperature: Annotated[float | None, Gt(0)] = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"
    negatives: Negatives = "all"
    focal_gamma: Annotated[
        float, Ge(0), "Above 0, queries that are answered already count less."
    ] = 0.0
    chunk: Annotated[
        int | None,
        Ge(1),
        "Columns of the score matrix computed at a time, for large batches; null: all.",
    ] = None

    @property
    def forms(self) -> tuple[str, ...]:
        """All; with ``chunk`` one vector of a text, or scores of pairs."""
        return SCORED if self.chunk is None else (*SINGLE, "scores")

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        return contrast(matrix.divided_by(self._temperature), focal_gamma=self.focal_gamma)

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the loss of a batch of vectors, in chunks where ``chunk`` is set."""
        if self.chunk is None or batch.matrix is not None:
            return LossBase.over(self, batch)
        return contrast_over(
            batch, self._temperature, chunk=self.chunk, focal_gamma=self.focal_gamma
        )

    @property
    def _temperature(self) -> float:
        return temperature_for(self.temperature, self.similarity)


@dataclass(frozen=True, slots=True)
class LocalizedSoftmax(LossBase):
    """``mean_i [log sum_j exp(s_ij) - s_i+]``, j over the group of query i only.

    For cross-encoders over raw logits.
    """

    summary = "softmax over the query's own group"
    paper = "Gao, Dai and Callan 2021 (LCE)"

    forms: ClassVar[tuple[Learnt, ...]] = ("scores",)  # what it trains
    negatives: ClassVar[Negatives] = "own"  # a group holds the query's own documents and no others

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        return contrast(matrix)


LEARNT = (0.01, 10.0)  # where a learnt temperature stays: CLIP's bound below


@dataclass(eq=False)
@checked("info_nce.")
class InfoNCE(LossBase):
    """``mean_i [log sum_j exp(s_ij / t) - s_i+ / t]``, j over the positive and the negatives.

    ``temperature`` is t; left out it is 0.05 for cosine, 1 for what is not bounded (dot products,
    logits, MaxSim) and 1/32 for mean MaxSim and XTR. ``similarity`` overrides the encoder's.
    ``negatives`` says what a query is held against: ``all`` documents of the batch, its ``own``,
    the batch's positives (``inbatch_pos``), or these and its own (``inbatch_pos+own``, as SPLADE
    trains). ``same_side`` adds query-query and positive-positive scores (KaLM), ``symmetric`` the
    same loss from document to query, averaged.

    ``learnable_temperature`` trains log t, with ``learning_rate`` (None: the encoder's).
    ``focal_gamma`` weighs a query with ``(1 - p)^gamma``, p its positive's probability, as a
    constant (KaLM-Embedding-V2). ``logq`` takes from each score the log of how often its document
    is expected in a batch, so that frequent documents are not pushed away for being frequent (Yi
    et al. 2019). ``chunk`` computes value and gradient from the vectors, so many columns of
    the score matrix at a time, in bounded memory.

    A query with several positives has the mean of their losses, none a negative of another.
    Documents known to be relevant are masked (``sluice.training.batches.vector_batch``).
    """

    summary = (
        "softmax of the positive against negatives: `own`, `inbatch_pos`, `inbatch_pos+own`, "
        "`all`; `same_side`, `symmetric`, `logq`, `focal_gamma`, `learnable_temperature`, "
        "`chunk`"
    )
    paper = "van den Oord et al. 2018, eq. 4; KaLM-Embedding-V2"

    temperature: Annotated[float | None, Gt(0)] = None
    similarity: Literal["auto", "cosine", "dot"] = "auto"
    negatives: Negatives = "all"
    same_side: Annotated[
        bool, "Whether queries, and positives, are compared with each other too."
    ] = False
    symmetric: Annotated[bool, "Whether the loss from document to query is averaged in."] = False
    learnable_temperature: Annotated[bool, "Whether the temperature is trained too."] = False
    learning_rate: Annotated[
        float | None, "The learning rate of the loss's own parameters; null: the trainer's."
    ] = 1e-3
    focal_gamma: Annotated[
        float, Ge(0), "Above 0, queries that are answered already count less."
    ] = 0.0
    logq: bool = False
    chunk: Annotated[
        int | None,
        Ge(1),
        "Columns of the score matrix computed at a time, for large batches; null: all.",
    ] = None

    def __post_init__(self) -> None:
        self.counts: LogCounts | None = None
        self.log_temperature: nn.Parameter | None = None
        if self.logq and self.same_side:
            raise ConfigError(
                "info_nce.logq: only documents have counts, expected same_side: false beside it"
            )
        if not self.learnable_temperature:
            because = "it is the temperature's; set learnable_temperature: true"
            refuse_idle("info_nce", self, ["learning_rate"], because)
        else:
            start = temperature_for(self.temperature, self.similarity)
            if not LEARNT[0] <= start <= LEARNT[1]:
                raise ConfigError(
                    f"info_nce.temperature: {start!r}, expected {LEARNT[0]} to {LEARNT[1]} when "
                    "it is learnt"
                )
            self.log_temperature = nn.Parameter(torch.tensor(math.log(start)))

    @property
    def forms(self) -> tuple[str, ...]:
        """All; ``logq`` takes those of documents encoded apart, ``chunk`` one vector each."""
        if self.chunk is not None:
            return SINGLE
        return APART if self.logq else SCORED

    @property
    def wants(self) -> frozenset[Want]:
        """With ``logq`` how often each document is drawn, of all examples."""
        return frozenset[Want]({"all_examples"}) if self.logq else frozenset()

    def bind_counts(self, counts: Mapping[str, float]) -> None:
        """Say how often each document occurs among the training pairs; used with ``logq``."""
        self.counts = LogCounts(counts)

    def parameters(self) -> list[nn.Parameter]:
        """Return the log-temperature when it is learnt."""
        return [] if self.log_temperature is None else [self.log_temperature]

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        learnt = self.log_temperature
        return {} if learnt is None else {"log_temperature": learnt.detach().clone()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take up the state a checkpoint kept."""
        if self.log_temperature is not None:
            self.log_temperature.data.copy_(state["log_temperature"])

    def advance(self, step: int) -> None:
        """Keep a learnt temperature within its bounds: a clamp of the value, not of its use.

        A clamp in the forward pass has no gradient outside and would hold it there for ever.
        """
        if self.log_temperature is not None:
            self.log_temperature.data.clamp_(*map(math.log, LEARNT))

    def notes(self) -> dict[str, float]:
        """Return the learnt temperature for the journal."""
        learnt = self.log_temperature
        return {} if learnt is None else {"temperature": math.exp(learnt.item())}

    def _value(self, matrix: ScoreMatrix) -> Tensor:
        return self._of(matrix.divided_by(self._divisor()))

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the loss of a batch of vectors, with ``logq`` and in chunks where these are set.

        Scores that come from elsewhere (``batch.matrix``) have neither.
        """
        if batch.matrix is not None or not (self.logq or self.chunk):
            return super().over(batch)
        shift = self._shift(batch) if self.logq else None
        if self.chunk is None:
            matrix = batch.score_matrix().divided_by(self._divisor())
            return self._of(matrix if shift is None else matrix.less(shift))
        return contrast_over(
            batch,
            self._divisor(),
            chunk=self.chunk,
            symmetric=self.symmetric,
            focal_gamma=self.focal_gamma,
            shift=shift,
        )

    def _of(self, matrix: ScoreMatrix) -> Tensor:
        return contrast(matrix, symmetric=self.symmetric, focal_gamma=self.focal_gamma)

    def _divisor(self) -> Tensor | float:
        if self.log_temperature is not None:
            return self.log_temperature.exp()
        return temperature_for(self.temperature, self.similarity)

    def _shift(self, batch: VectorBatch) -> Tensor:
        if self.counts is None or "document" not in batch.ids:
            raise ConfigError(
                "info_nce.logq: needs the documents' counts (bind_counts) and their ids in the "
                "batch; which this training does not provide: leave logq out"
            )
        return self.counts.log_counts(batch.ids["document"]).to(batch.documents)


class LogCounts:
    """Log expected counts from how often each document occurs among the training pairs.

    A batch of N documents drawn from pairs with ``total`` occurrences holds a document that occurs
    c times ``N c / total`` times on average. A document without a count (mined after the counting)
    counts as having occurred once. Raises ``DataError`` for a count that is not above 0.
    """

    def __init__(self, counts: Mapping[str, float]) -> None:
        for document, count in counts.items():
            if not 0 < count < math.inf:
                raise DataError(
                    f"counts: document {document!r} occurs {count!r} times, expected above 0; "
                    "count only documents of the training pairs"
                )
        self.counts = dict(counts)
        self.total = math.fsum(counts.values()) or 1.0

    def log_counts(self, documents: Sequence[str]) -> Tensor:
        """Return ``[N]`` float64 log expected counts of the documents of one batch."""
        share = len(documents) / self.total
        return torch.tensor(
            [math.log(share * self.counts.get(d, 1.0)) for d in documents], dtype=torch.float64
        )
