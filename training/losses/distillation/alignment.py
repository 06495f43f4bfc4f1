"""Embedding alignment: the student's vectors drawn to a teacher's vectors of the same texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.tuning.learning import Form
from sluice.training.batches.targets import Negatives
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.base import LossBase
from sluice.training.losses.distillation.text_means import (
    Sides,
    mean_over_texts,
    teacher_of,
    vectors_of,
)


@dataclass(frozen=True, slots=True)
class Alignment(LossBase):
    """Mean over texts of ``|f(x) - T(x)|^2`` (``l2``) or ``1 - cos(f(x), T(x))`` (``cosine``).

    T(x) is the vector that ``teacher``, one dense encoder, has for the text. Labels and negatives
    do not count: any texts will do. A student aligned on its queries searches the teacher's
    documents: ``{type: towers, query: student, document: teacher}``. ``sides``: ``query``,
    ``document``, or ``both``. With ``l2`` an encoder whose similarity is the cosine is compared by
    vectors of length 1. Both must have as many dimensions: ``projection`` gives an encoder others.
    """

    summary = "the student's vectors drawn to a teacher's, for towers of different size"
    paper = "Vujanic and Rueckstiess 2025 (LEAF, arXiv 2509.12539)"

    forms: ClassVar[tuple[Form, ...]] = ("dense",)  # what it trains
    negatives: ClassVar[Negatives] = "own"
    teacher_vectors: ClassVar[bool] = True

    distance: Annotated[Literal["l2", "cosine"], "Of the two vectors: l2 (squared), or cosine."] = (
        "l2"
    )
    sides: Annotated[Sides, "The texts that are aligned: queries, documents, or both."] = "both"

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the mean distance; a text weighs what its query weighs."""
        own, goals = vectors_of(batch), teacher_of(batch, "alignment")
        return mean_over_texts(
            batch, self.sides, lambda side: self._gaps(own[side], goals[side], batch.cosine)
        )

    def _gaps(self, vectors: Tensor, goals: Tensor, cosine: bool) -> Tensor:
        """``[n]``: the distance of each vector from its goal."""
        if vectors.shape != goals.shape:
            raise ConfigError(
                f"alignment: the encoder's vectors have {vectors.shape[1]} dimensions and the "
                f"teacher's {goals.shape[1]}; set encoder.projection: {goals.shape[1]}"
            )
        goals = goals.to(vectors)
        if self.distance == "cosine":
            return 1 - cosine_similarity(vectors, goals, dim=1)
        return ((normalize(vectors, dim=1) if cosine else vectors) - goals).square().sum(1)
