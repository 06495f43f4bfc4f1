"""DSE: a light head over pairs of vectors learns a cross-encoder's logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from sluice.encoders.dense.pair_head import PairHead, draw_pair_head
from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import DataError
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.composed.headed import Headed
from sluice.training.losses.composed.wrapper import of_vectors, plain_inside
from sluice.training.losses.math.width import width_of


@dataclass(eq=False)
@checked("dse.")
class DSE(Headed[PairHead]):
    """``coefficient MSE(head, teacher) + (1 - coefficient) loss``, trained with its head.

    The head (``sluice.encoders.dense.pair_head``, ``hidden`` wide) scores a pair from [u, v, u * v,
    |u - v|]. The squares are over the documents that count and the teacher scored, its logits as
    they are; rows weigh theirs. The task's ``loss``, by default ``bce`` over the query's own
    documents, sees the head's scores, or with ``task: vectors`` the vectors, so that these stay fit
    for an index (then say ``loss: {type: info_nce}``). The head is saved beside the model in
    ``pair_head/``.
    """

    summary = "a pair head over cached vectors, taught by logits; saved beside the model"
    paper = "Barkan et al. 2020 (Distilled Sentence Embedding), eq. 4"

    called: ClassVar[str] = "dse"
    usual: ClassVar[Mapping[str, Any]] = {"type": "bce"}

    coefficient: Annotated[float, Interval(ge=0, le=1), "The weight of the structural term."] = 0.5
    hidden: Annotated[int, Ge(1), "The width of the pair head."] = 512
    task: Literal["head", "vectors"] = "head"

    def __post_init__(self) -> None:
        Headed.__post_init__(self)
        plain_inside(self, "the head scores queries with documents only")

    @property
    def needs_teacher(self) -> bool:
        """Unless the teacher weighs nothing."""
        return self.coefficient > 0 or super().needs_teacher

    def bind(self, encoder: Any, seed: int) -> None:
        """Draw the head for the encoder's vectors."""
        super().bind(encoder, seed)
        device = next(encoder.module.parameters()).device
        self.head = draw_pair_head(width_of(encoder), self.hidden, seed).to(device)

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the mix of squared errors and the task's loss."""
        of_vectors(batch, self.called)
        head = self._head()
        rows, columns = batch.mask.nonzero(as_tuple=True)
        logits = head(batch.queries[rows], batch.documents[columns])  # [cells]
        matrix = torch.zeros_like(batch.labels, dtype=logits.dtype)
        matrix = matrix.index_put((rows, columns), logits)
        seen = batch if self.task == "vectors" else replace(batch, matrix=matrix)
        value = (1 - self.coefficient) * self.inner.over(seen)
        if not self.coefficient:
            return value
        if batch.teacher is None:
            raise DataError(
                "dse: the batch has no teacher's scores; make them with `sluice teach distil` "
                "and name the file under `teacher:`"
            )
        goal = batch.teacher[rows, columns].to(logits.dtype)
        known = goal.isfinite()
        squares = (logits[known] - goal[known]).square()
        share = torch.ones_like(squares)
        if batch.weights is not None:
            share = batch.weights[rows[known]].to(squares)
        total = share.sum().clamp(min=torch.finfo(squares.dtype).tiny)
        mixed: Tensor = value + self.coefficient * (squares * share).sum() / total
        return mixed
