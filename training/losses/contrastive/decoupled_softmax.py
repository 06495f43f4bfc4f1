"""Decoupled softmax: each positive against the negatives, never against its siblings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt
from torch import Tensor

from sluice.encoders.foundation.build import checked
from sluice.encoders.tuning.learning import SCORED, SINGLE
from sluice.training.batches.targets import Negatives
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.base import LossBase
from sluice.training.losses.contrastive.contrast import contrast, contrast_over
from sluice.training.losses.math.reduction import temperature_for
from sluice.training.protocol import ScoreMatrix


@dataclass(frozen=True, slots=True)
@checked("decoupled_softmax.")
class DecoupledSoftmax(LossBase):
    """``mean_i 1/|P_i| sum_{p in P_i} [log(e^{s_ip} + sum_{n not in P_i} e^{s_in}) - s_ip]``.

    For examples that bring several positives: a softmax over all of them pushes the strongest down
    in favour of the others, this one does not. Positives that are known but not in the example are
    masked (``sluice.training.batches.targets``), as the method needs. With one positive it is
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
        return contrast(matrix.over(self._temperature), focal_gamma=self.focal_gamma)

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
