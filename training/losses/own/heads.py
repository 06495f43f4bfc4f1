"""Losses whose own head over pairs of vectors is trained beside the encoder, and saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, normalize

from sluice.encoders.dense.error_adapter import FILE, ErrorAdapter, PairHead, draw_pair_head
from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses import USUAL, USUAL_OF_PAIRS
from sluice.training.losses.composed.members import Wrapping, of_vectors, plain_inside
from sluice.training.losses.math.reduction import width_of

Head = TypeVar("Head", PairHead, ErrorAdapter)


@dataclass(eq=False)
class Headed(Wrapping, Generic[Head]):
    """A loss around ``loss`` with a head over two dense vectors, which ``bind`` makes."""

    head_name: ClassVar[str] = "head"  # in messages, and before the names of its tensors

    head_learning_rate: Annotated[
        float | None, "The learning rate of the head; left out, the trainer's."
    ] = None

    def __post_init__(self) -> None:
        Wrapping.__post_init__(self)
        self.head: Head | None = None
        if self.head_learning_rate is not None and not self.head_learning_rate > 0:
            raise ConfigError(
                f"{self.called}.head_learning_rate: {self.head_learning_rate!r}, expected above 0"
            )

    @property
    def forms(self) -> tuple[str, ...]:
        """A head reads one dense vector of each text, whatever the inner loss trains."""
        return ("dense",)

    @property
    def learning_rate(self) -> float | None:
        """``head_learning_rate``, else the inner loss's."""
        return self.head_learning_rate or super().learning_rate

    def parameters(self) -> Iterable[nn.Parameter]:
        """Return the head's and the inner loss's parameters."""
        return [*self._head().parameters(), *super().parameters()]

    def state(self) -> dict[str, Tensor]:
        """Return the head's weights beside the inner loss's tensors."""
        own = {f"{self.head_name}.{k}": v.detach() for k, v in self._head().state_dict().items()}
        return {**super().state(), **own}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take what ``state`` returned."""
        super().restore(state)
        before = f"{self.head_name}."
        self._head().load_state_dict(
            {k.removeprefix(before): v for k, v in state.items() if k.startswith(before)}
        )

    def save(self, folder: str | Path) -> None:
        """Write the head beside the trained model."""
        super().save(folder)
        self._head().save(folder)

    def _head(self) -> Head:
        if self.head is None:
            raise ConfigError(
                f"{self.called}: has no {self.head_name} yet; call bind(encoder, seed) before "
                "training"
            )
        return self.head


@dataclass(eq=False)
@checked("dse.")
class DSE(Headed[PairHead]):
    """``coefficient MSE(head, teacher) + (1 - coefficient) loss``, trained with its head.

    The head (``sluice.encoders.dense.error_adapter``, ``hidden`` wide) scores a pair from
    [u, v, u * v, |u - v|]. The squares are over the documents that count and
    the teacher scored, its logits as they are; rows weigh theirs. The task's ``loss``, by default
    ``bce`` over the query's own documents, sees the head's scores, or with ``task: vectors`` the
    vectors, so that these stay fit for an index (then say ``loss: {type: info_nce}``). The head is
    saved beside the model in ``pair_head/``.
    """

    summary = "a pair head over cached vectors, taught by logits; saved beside the model"
    paper = "Barkan et al. 2020 (Distilled Sentence Embedding), eq. 4"

    called: ClassVar[str] = "dse"
    usual: ClassVar[Mapping[str, Any]] = USUAL_OF_PAIRS

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


KINDS = 4  # true and false negatives and positives


@dataclass(eq=False)
@checked("rrra.")
class RRRA(Headed[ErrorAdapter]):
    """``loss + adapter_weight L``, L the cross-entropy of relevance as an adapter gives it.

    Pairs are the cells that count of the batch. Among a query's documents the ``top`` of the
    highest cosines are what the bi-encoder finds; with the labels these make four kinds of pairs,
    true and false positives and negatives, and L is the mean over the kinds of the mean over their
    pairs (rows weigh theirs). Gradients reach the encoder. ``adapter`` is a folder of
    `sluice fit adapter`; left out, a new one begins. It is saved beside the model, which then opens
    as ``{type: rrra, model: ...}``. ``loss`` is by default InfoNCE.
    """

    summary = "the loss beside the cross-entropy of an adapter that finds the encoder's errors"
    paper = "RRRA, stage 3 (its figures are disputed; measured in other-representations.md)"

    called: ClassVar[str] = "rrra"
    head_name: ClassVar[str] = "adapter"
    usual: ClassVar[Mapping[str, Any]] = USUAL

    adapter: Annotated[
        str | None, "The folder of a fitted adapter; left out, a new one begins."
    ] = None
    adapter_weight: Annotated[
        float, Gt(0), "The weight of the adapter's cross-entropy beside the loss."
    ] = 0.1
    top: Annotated[
        int, Ge(1), "The documents of a query that count as what the encoder finds in a batch."
    ] = 4

    def __post_init__(self) -> None:
        Headed.__post_init__(self)
        if self.adapter is not None and not (Path(self.adapter) / FILE).is_file():
            raise ConfigError(
                f"rrra.adapter: {self.adapter} has no {FILE}; `sluice fit adapter` makes such a "
                "folder, or leave it out"
            )
        plain_inside(self, "the adapter compares queries with documents only")

    def bind(self, encoder: Any, seed: int) -> None:
        """Load the adapter, or draw one, for the encoder's vectors."""
        super().bind(encoder, seed)
        device, width = next(encoder.module.parameters()).device, width_of(encoder)
        if self.adapter is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                head = ErrorAdapter(width, width)
        else:
            head = ErrorAdapter.load(self.adapter)
            if head.dim != width:
                raise ConfigError(
                    f"rrra.adapter: {self.adapter} is for vectors of {head.dim} dimensions, and "
                    f"the encoder's have {width}; fit an adapter for this encoder"
                )
        self.head = head.to(device).train()

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the inner loss plus the weighted cross-entropy."""
        of_vectors(batch, self.called)
        return self.inner.over(batch) + self.adapter_weight * self._entropy(batch)

    def _entropy(self, batch: VectorBatch) -> Tensor:
        head, count = self._head(), len(batch.documents)
        mask = batch.mask[:, :count]
        rows, columns = mask.nonzero(as_tuple=True)
        q, c = batch.queries[rows], batch.documents[columns]
        relevant = batch.labels[rows, columns] > 0
        kinds = 2 * relevant.long() + self._top_documents(batch, mask)[rows, columns].long()
        logits = head.logits(q, head(q, c))
        cells = binary_cross_entropy_with_logits(logits, relevant.to(logits), reduction="none")
        share = torch.ones_like(cells)
        if batch.weights is not None:
            share = batch.weights[rows].to(cells)
        sums, sizes = cells.new_zeros(KINDS), cells.new_zeros(KINDS)
        sums = sums.index_add(0, kinds, cells * share)
        sizes = sizes.index_add(0, kinds, share)
        held = sizes > 0
        return (sums[held] / sizes[held]).sum() / held.sum().clamp(min=1)

    def _top_documents(self, batch: VectorBatch, mask: Tensor) -> Tensor:
        """``[B, N]``: whether a document is among its query's ``top`` that count, by cosine."""
        with torch.no_grad():
            cosines = normalize(batch.queries, dim=1) @ normalize(batch.documents, dim=1).T
            cosines = cosines.masked_fill(~mask, -torch.inf)
            places = cosines.topk(min(self.top, cosines.shape[1]), dim=1).indices
            return torch.zeros_like(mask).scatter(1, places, True) & mask
