"""GRL: one decoder that embeds texts and writes passages, each teaching the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn.functional import kl_div, logsigmoid, normalize

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.table import Learnt as Form
from sluice.training.batches.processes import world
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.base import LossBase, Want
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.losses.own.multi_similarity import mined

if TYPE_CHECKING:
    from sluice.encoders.generative.constrained_decoding import OwnWriting
    from sluice.training.protocol import Example

LEAST = 1e-12  # of a squared distance, whose root has no gradient at 0


class WrittenTexts(NamedTuple):
    """The query and the document's column of each text written, and its cell among all of them."""

    queries: Tensor
    columns: Tensor
    rows: Tensor
    slots: Tensor

    def laid_out(self, values: Tensor) -> Tensor:
        """Return values ``[n]`` as ``[queries, documents]``, NaN for the places left over."""
        shape = int(self.rows.max()) + 1, int(self.slots.max()) + 1
        return values.new_full(shape, float("nan")).index_put((self.rows, self.slots), values)


@dataclass(eq=False)
@checked("grl.")
class GRL(LossBase):
    """Contrast of vectors, plus what the model writes, plus the divergence between the two.

    The contrast is InfoNCE over ``-|q - d| / temperature`` of unit vectors (``distance: l2``), or
    over their cosine; ``mining`` leaves the cells that ``multi_similarity`` would mine. With
    ``writing: preference`` the model learns to write a query's positive rather than its first
    negative, ``-log sigmoid(beta (log P(d+|q) - log P(d-|q)))``, with sums over the tokens and no
    reference model; ``supervised`` is the mean cross-entropy of the positive's tokens. The
    divergence is ``KL(softmax(g) || softmax(cos / temperature))`` over a query's own documents, g
    being the mean log-probability of a document's tokens, as a constant: the vectors learn from
    what is written, and not the other way round. ``writing_weight`` and ``agreement_weight`` weigh
    the second and the third part; the third needs negatives, and so ``preference``.
    (Man et al. 2024, "ULLME: A unified framework for large language model embeddings with
    generation-augmented learning", arXiv 2408.03402; Rafailov et al. 2023, DPO.)
    """

    summary = "a decoder that embeds and writes: contrast, preference and their divergence"
    paper = "Man et al. 2024 (ULLME, arXiv 2408.03402)"

    forms: ClassVar[tuple[Form, ...]] = ("dense",)  # what it trains
    wants: ClassVar[frozenset[Want]] = frozenset({"network", "all_examples"})

    temperature: Annotated[
        float, Gt(0), "Divides distances or cosines, of the contrast and of the divergence."
    ] = 0.05
    distance: Annotated[
        Literal["l2", "cosine"],
        "What the contrast compares: l2, minus the distance of unit vectors, or cosine.",
    ] = "l2"
    mining: Annotated[
        float | None,
        Ge(0),
        "The margin by which documents say something to the contrast, as multi_similarity mines "
        "them; left out, all count.",
    ] = None
    writing: Annotated[
        Literal["preference", "supervised"],
        "What is learnt of writing: to prefer a positive to a negative, or supervised, the "
        "positive's tokens.",
    ] = "preference"
    beta: Annotated[float | None, Gt(0), "Steepness of the preference; left out, 0.1."] = None
    writing_weight: Annotated[float, "The weight of the writing; 0: none."] = 1.0
    agreement_weight: Annotated[
        float | None,
        "The weight of the divergence between what is written and what is near; left out, "
        "1 with writing: preference.",
    ] = None

    def __post_init__(self) -> None:
        for name, known in (("distance", ("l2", "cosine")),
                            ("writing", ("preference", "supervised"))):  # fmt: skip
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"grl.{name}: {getattr(self, name)!r}, expected {' or '.join(known)}"
                )
        preferred = self.writing == "preference"
        for name in () if preferred else ("beta", "agreement_weight"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"grl.{name}: compares what is written of a positive and of negatives, and "
                    "writing: supervised looks at positives alone; leave it out, or set writing: "
                    "preference"
                )
        self._beta = 0.1 if self.beta is None else self.beta
        self._agreement = float(preferred)
        if self.agreement_weight is not None:
            self._agreement = self.agreement_weight
        for name, weight in (("writing_weight", self.writing_weight),
                             ("agreement_weight", self._agreement)):  # fmt: skip
            if not 0 <= weight < float("inf"):
                raise ConfigError(f"grl.{name}: {weight!r}, expected 0 or more")
        if self.writing_weight == 0 and self._agreement == 0:
            raise ConfigError(
                "grl: writing_weight and agreement_weight are 0, which leaves the contrast alone; "
                "take loss: info_nce"
            )
        if self.writing_weight == 0 and self.beta is not None:
            raise ConfigError("grl.beta: is of the writing, which weighs 0; leave it out")
        self._contrast = InfoNCE(temperature=self.temperature)
        self._own: OwnWriting | None = None
        self._parts: dict[str, float] = {}

    def bind(self, encoder: Any, seed: int) -> None:
        """Give the encoder's network the head that writes; ``ConfigError`` where it has none."""
        from sluice.encoders.generative.constrained_decoding import OwnWriting

        if world() > 1:
            raise ConfigError("loss: grl trains in one process; start it without torchrun")
        self._own = OwnWriting(encoder)

    def bind_examples(self, examples: Sequence[Example]) -> None:
        """Raise ``DataError`` where no example has a negative, and one is needed."""
        if self.writing == "supervised":
            return
        if all(all(label > 0 for label in each.labels) for each in examples):
            raise DataError(
                f"loss: grl prefers a positive to a negative, and none of {len(examples):,} "
                "examples has a negative; mine some (negatives: {type: mined, ...}), or set "
                "writing: supervised"
            )

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the sum of the three parts."""
        if self._own is None:
            raise ConfigError("grl: not bound to an encoder; train with sluice.training.fit")
        queries, documents = normalize(batch.queries, dim=1), normalize(batch.documents, dim=1)
        cosines = queries @ documents.T
        scores = cosines
        if self.distance == "l2":
            scores = -(2 - 2 * cosines).clamp(min=LEAST).sqrt()
        taking = batch.mask
        if self.mining is not None:
            taking = mined(cosines.detach(), batch.labels, taking, self.mining)
        value = self._contrast(scores, batch.labels, taking, batch.weights)
        self._parts = {"loss_contrast": value.item()}
        asked = self._written_texts(batch)
        if not len(asked.rows):
            return value
        sums, lengths = self._written(self._own, batch, asked)
        own = asked.laid_out(sums)
        if self.writing_weight:
            part = -sums.sum() / lengths.sum()
            if self.writing == "preference":
                part = preference(own[:, 0], own[:, 1], self._beta)
            self._parts["loss_writing"] = part.item()
            value = value + self.writing_weight * part
        if self._agreement:
            near = asked.laid_out(cosines[asked.queries, asked.columns])
            part = agreement(near / self.temperature, asked.laid_out(sums / lengths))
            self._parts["loss_agreement"] = part.item()
            value = value + self._agreement * part
        return value

    def _written(
        self, own: OwnWriting, batch: VectorBatch, asked: WrittenTexts
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and lengths, once for a batch, whatever its vectors are.

        Losses over prefixes and layers of the vectors ask for each of them.
        """
        cells = tuple(asked.queries.tolist()), tuple(asked.columns.tolist())
        key = own, torch.is_grad_enabled(), cells
        if key not in batch.memo:
            made = own.log_probabilities(
                batch.features, asked.queries, asked.columns, chunk=batch.chunk
            )
            batch.memo[key] = made
        found: tuple[Tensor, Tensor] = batch.memo[key]
        return found

    def _written_texts(self, batch: VectorBatch) -> WrittenTexts:
        """Return what is written: of each query its positive, and then its own negatives.

        A query without a negative is left out where one is needed.
        """
        cells: list[tuple[int, int, int, int]] = []
        owners, labels = batch.owners.tolist(), batch.labels.tolist()
        count = 0
        for query, positive in enumerate(batch.positives.tolist()):
            columns = [positive]
            if self.writing == "preference":
                own = (column for column, owner in enumerate(owners) if owner == query)
                columns += [column for column in own if labels[query][column] <= 0]
                if len(columns) == 1:
                    continue
            cells += [(query, column, count, slot) for slot, column in enumerate(columns)]
            count += 1
        table = torch.tensor(cells, dtype=torch.long, device=batch.queries.device)
        return WrittenTexts(*table.reshape(-1, 4).unbind(dim=1))

    def save(self, folder: str | Path) -> None:
        """Name the class that writes in the model's configuration, and keep a head of its own."""
        if self._own is not None:
            self._own.save(Path(folder))

    def parameters(self) -> Iterable[nn.Parameter]:
        """Return the head's weights, where it has its own and they learn."""
        own = [] if self._own is None else self._own.own_head.values()
        return [value for value in own if value.requires_grad]

    def state(self) -> dict[str, Tensor]:
        """Return the weights of a head of its own."""
        own = {} if self._own is None else self._own.own_head
        return {name: value.detach() for name, value in own.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take what ``state`` returned."""
        if self._own is not None:
            for name, value in self._own.own_head.items():
                value.data.copy_(state[name])

    def notes(self) -> dict[str, float]:
        """Return the last batch's parts."""
        return dict(self._parts)


def preference(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Return ``mean -log sigmoid(beta (chosen - rejected))`` of log-probabilities ``[n]``."""
    return -logsigmoid(beta * (chosen - rejected)).mean()


def agreement(logits: Tensor, written: Tensor) -> Tensor:
    """Return the mean over rows of ``KL(softmax(written) || softmax(logits))``, both ``[n, m]``.

    NaN stands for none. No gradient reaches ``written``.
    """
    there = ~written.isnan()
    teacher = written.detach().masked_fill(~there, float("-inf")).softmax(dim=1)
    student = logits.masked_fill(~there, float("-inf")).log_softmax(dim=1)
    cells = kl_div(student.masked_fill(~there, 0.0), teacher, reduction="none")
    return cells.sum(dim=1).mean()
