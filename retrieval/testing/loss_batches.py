"""The batches that losses are checked on, in float64, laid out as the Trainer does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import is_not
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from sluice.training.batches.vector_batch import VectorBatch, group_targets, matrix_targets
from sluice.training.losses.base import LossBase, as_loss
from sluice.training.protocol import Example, Text

DIM = 16
Layout = Literal["matrix", "groups"]
Value = tuple[Tensor, list[Tensor]]  # a loss's value, and its gradient for each leaf


class TwoLayers:
    """A dense encoder of token means, as far as a loss looks at it."""

    similarity = "cosine"
    layer_count = 2

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.module = torch.nn.Embedding(64, DIM)

    def tokenize(self, texts: Sequence[str], side: str) -> dict[str, Tensor]:
        """Return the numbers in the texts as token ids."""
        rows = [[1, *(2 + int(word) for word in text.split()[1:])] for text in texts]
        ids = torch.tensor([row + [0] * (2 - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}

    def embed(self, features: Any, side: str) -> Tensor:
        """Return the mean of the tokens' vectors."""
        mask = features["attention_mask"][..., None]
        vectors: Tensor = (self.module(features["input_ids"]) * mask).sum(1) / mask.sum(1)
        return vectors

    def encode_documents(self, texts: Sequence[str]) -> Any:
        """Return the texts' vectors as an array."""
        with torch.no_grad():
            return self.embed(self.tokenize(texts, "document"), "document").numpy()

    encode_queries = encode_documents

    def embed_layers(self, features: Any, side: str, layers: Sequence[int]) -> Tensor:
        """Return a multiple of the mean for each layer."""
        return torch.cat([self.embed(features, side) * layer for layer in layers], dim=1)


class Leaves(NamedTuple):
    """All that a value can depend on, by the number of a query or a document."""

    queries: Tensor
    documents: Tensor
    early_queries: Tensor
    early_documents: Tensor
    answered: Tensor
    logits: Tensor
    negative_queries: Tensor
    teacher: Tensor  # not a leaf


def _examples() -> list[Example]:
    examples, number = [], 0
    for row, (positives, negatives) in enumerate([(1, 2), (2, 2), (1, 3), (1, 4)]):
        documents = [
            Text(str(n), f"text {n}") for n in range(number, number + positives + negatives)
        ]
        number += len(documents)
        labels = (1.0,) * positives + (0.0,) * negatives
        examples.append(Example(Text(str(row), f"query {row}"), tuple(documents), labels))
    return examples


EXAMPLES = _examples()
ROWS = len(EXAMPLES)
# What else is trained on: as many texts as losses of all documents need, in other batches.
FURTHER = [
    Example(Text(f"further {n}", f"query {n}"), (Text(f"further {n}", f"text {n}"),))
    for n in range(20, 50)
]
# A teacher's vectors of the queries, then of the documents.
GOALS = torch.randn(
    ROWS + sum(len(e.documents) for e in EXAMPLES), DIM,
    generator=torch.Generator().manual_seed(5), dtype=torch.float64,
)  # fmt: skip


def leaves(scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Leaves:
    """Return random leaves, the same each time."""
    torch.manual_seed(0)
    count = sum(len(e.documents) for e in EXAMPLES)

    def leaf(*shape: int) -> Tensor:
        return (torch.randn(*shape, dtype=torch.float64) * scale).to(dtype).requires_grad_()

    shapes = [(ROWS, DIM), (count, DIM), (ROWS, DIM), (count, DIM), (count, DIM), (ROWS, count)]
    own = [leaf(*shape) for shape in shapes]
    teacher = torch.randn(ROWS, count, dtype=torch.float64).to(dtype)
    return Leaves._make([*own, leaf(ROWS, DIM), teacher])


def turned(examples: Sequence[Example]) -> list[Example]:
    """Return the examples in another order, negatives backwards and before the positives."""
    other = []
    for example in (examples[i] for i in (2, 0, 3, 1)):
        pairs = sorted(zip(example.labels, example.documents, strict=True), key=lambda p: p[0])
        negatives = [pair for pair in pairs if pair[0] <= 0][::-1]
        both = negatives + [pair for pair in pairs if pair[0] > 0]
        documents, labels = tuple(d for _, d in both), tuple(label for label, _ in both)
        other.append(replace(example, documents=documents, labels=labels))
    return other


@dataclass(frozen=True)
class LossCase:
    """A loss, and the batches it is for: ``matrix`` or ``groups``.

    A matrix has every document of the batch, a group those of its query alone: what a
    cross-encoder scores, padded to the largest.
    """

    make: Callable[[], Any]
    layout: Layout

    def loss(self, dtype: torch.dtype = torch.float64) -> LossBase:
        """Return a new loss, bound to an encoder as before the first step."""
        loss = as_loss(self.make())
        if self.layout == "matrix":
            loss = loss.bound_to("cosine")
        loss.bind(TwoLayers(), 0)
        loss.bind_examples([*EXAMPLES, *FURTHER])
        for parameter in loss.parameters():
            if parameter.dim():
                parameter.data = parameter.data.to(dtype)
        return loss

    @property
    def of_scores(self) -> bool:
        """Whether a score matrix is all it needs."""
        return of_scores(as_loss(self.make()))

    def batch(
        self, loss: LossBase, examples: Sequence[Example], parts: Leaves, weights: Tensor | None
    ) -> VectorBatch:
        """Return the batch as the Trainer lays it out, a function of the leaves."""
        rows = torch.tensor([int(e.query.id) for e in examples])
        columns = torch.tensor([int(d.id) for e in examples for d in e.documents])
        owners = torch.tensor([row for row, e in enumerate(examples) for _ in e.documents])
        dtype = parts.logits.dtype
        own = owners[None, :] == torch.arange(len(examples))[:, None]
        if self.layout == "groups":
            targets = group_targets(examples)
            flat = parts.logits[rows[owners], columns]
            matrix = torch.zeros_like(targets.labels, dtype=dtype)
            matrix = matrix.masked_scatter(targets.places, flat)
            teacher = torch.full_like(matrix, torch.nan)
            teacher = teacher.masked_scatter(targets.places, parts.teacher[rows[owners], columns])
        else:
            targets = matrix_targets(examples, loss.negatives)
            matrix = parts.logits[rows[:, None], columns]
            teacher = parts.teacher[rows[:, None], columns]
            if "teacher_matrix" not in loss.wants:
                teacher = teacher.masked_fill(~own, torch.nan)
        vectors = parts.queries[rows], parts.documents[columns]
        early = parts.early_queries[rows], parts.early_documents[columns]
        labels = torch.tensor([label for e in examples for label in e.labels])
        negatives = (labels <= 0).nonzero()[:, 0]
        documents = [d for e in examples for d in e.documents]
        encoder, layers = TwoLayers(), loss.layers
        return VectorBatch(
            *vectors,
            labels=targets.labels.to(dtype),
            mask=targets.mask,
            positives=targets.positives,
            owners=owners,
            weights=None if weights is None else weights.to(dtype)[rows],
            teacher=teacher,
            cosine=self.layout == "matrix",
            layers=(vectors, early) if layers is not None and len(layers(0)) == 2 else (),
            answered=(negatives, parts.answered[columns[negatives]]),
            negative_queries=(torch.arange(len(rows)), parts.negative_queries[rows]),
            teacher_vectors=(GOALS[:ROWS][rows].to(dtype), GOALS[ROWS:][columns].to(dtype)),
            features={
                "query": encoder.tokenize([e.query.text for e in examples], "query"),
                "document": encoder.tokenize([d.text for d in documents], "document"),
            },
            matrix=matrix if of_scores(loss) or self.layout == "groups" else None,
            ids={
                "query": tuple(e.query.id for e in examples),
                "document": tuple(d.id for d in documents),
            },
        )

    def value(
        self,
        parts: Leaves,
        *,
        examples: Sequence[Example] = EXAMPLES,
        weights: Tensor | None = None,
        change: Callable[[VectorBatch], VectorBatch] = lambda batch: batch,
    ) -> Tensor:
        """Return the value of a new loss on the batch, after a change of it."""
        loss = self.loss(parts.logits.dtype)
        batch = change(self.batch(loss, examples, parts, weights))
        if of_scores(loss):
            return loss(batch.scores(), batch.labels, batch.mask, batch.weights, batch.teacher)
        return loss.over(batch)

    def evaluated(self, parts: Leaves, **options: Any) -> Value:
        """Return a value, and its gradients for the leaves (zeros where it has none)."""
        value = self.value(parts, **options)
        found = torch.autograd.grad(value, parts[:-1], allow_unused=True)
        return value, [
            torch.zeros_like(leaf) if gradient is None else gradient
            for leaf, gradient in zip(parts[:-1], found, strict=True)
        ]


def of_scores(loss: LossBase) -> bool:
    """Return whether a score matrix is all that a loss needs."""
    return takes_scores(loss) and "texts" not in loss.wants


def takes_scores(loss: Any) -> bool:
    """Return whether a loss may be called with a score matrix."""
    own = getattr(loss, "loss", None) if type(loss).__name__ == "Adapted" else loss
    kind = type(own)
    writes = (getattr(kind, name, None) for name in ("_value", "__call__"))
    base = (getattr(LossBase, name, None) for name in ("_value", "__call__"))
    return callable(own) and any(map(is_not, writes, base))


def layouts(loss: LossBase) -> list[Layout]:
    """Return the layouts a loss is for, by the encoders it trains."""
    forms = set(loss.forms)
    both: list[tuple[Layout, bool]] = [
        ("matrix", forms != {"scores"}),
        ("groups", forms == {"scores"}),
    ]
    return [layout for layout, fits in both if fits or of_scores(loss)]


def without_row(batch: VectorBatch, row: int) -> VectorBatch:
    """Return the score matrix less one row; of interest to losses over scores only."""
    kept = torch.arange(len(batch.labels)) != row
    return replace(
        batch,
        labels=batch.labels[kept],
        mask=batch.mask[kept],
        weights=None if batch.weights is None else batch.weights[kept],
        teacher=None if batch.teacher is None else batch.teacher[kept],
        matrix=None if batch.matrix is None else batch.matrix[kept],
    )


def padded_elsewhere(batch: VectorBatch) -> VectorBatch:
    """Return groups whose padding holds other scores and labels."""
    places = group_targets(EXAMPLES).places
    matrix = batch.scores().masked_fill(~places, 77.0)
    return replace(batch, matrix=matrix, labels=batch.labels.masked_fill(~places, 1.0))
