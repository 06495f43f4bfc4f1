"""InfoNCE: each query's positive against the other documents of the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.tuning.learning import APART, SCORED, SINGLE
from sluice.training.batches.targets import Negatives
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.base import LossBase
from sluice.training.losses.contrastive.contrast import contrast, contrast_over
from sluice.training.losses.math.reduction import (
    refuse_idle,
    temperature_for,
)
from sluice.training.protocol import ScoreMatrix

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
    Documents known to be relevant are masked (``sluice.training.batches.targets``).
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
        return self._of(matrix.over(self._divisor()))

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the loss of a batch of vectors, with ``logq`` and in chunks where these are set.

        Scores that come from elsewhere (``batch.matrix``) have neither.
        """
        if batch.matrix is not None or not (self.logq or self.chunk):
            return super().over(batch)
        shift = self._shift(batch) if self.logq else None
        if self.chunk is None:
            matrix = batch.score_matrix().over(self._divisor())
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
        return self.counts.of(batch.ids["document"]).to(batch.documents)


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

    def of(self, documents: Sequence[str]) -> Tensor:
        """Return ``[N]`` float64 log expected counts of the documents of one batch."""
        share = len(documents) / self.total
        return torch.tensor(
            [math.log(share * self.counts.get(d, 1.0)) for d in documents], dtype=torch.float64
        )
