"""What every loss of the table must do, whoever wrote it."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_args

import pytest
import torch
from torch import Tensor

from sluice.encoders.foundation.build import build
from sluice.training.batches.targets import Negatives, group_targets, matrix_targets
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.example import Example, Text
from sluice.training.losses import LOSSES
from sluice.training.losses.base import LossBase

# What a loss needs to be made, or to have no order of its own among the columns.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "adore": {"ranks": "scores"},
    "matryoshka": {"dims": [16, 8]},
    "matryoshka_2d": {"dims": [16, 8]},
    "momentum_queue": {"modes": [], "size": 8},
    "soft_top_k": {"k": 1},
    "sum": {"losses": [{"type": "info_nce"}, {"type": "star", "weight": 0.5}]},
}
# What is drawn by the place in the batch differs when places are exchanged.
DRAWN = {"mixing": "mixes by a draw for each row"}
# Whose vectors count beyond the cells of their own rows.
ALIGNED = {"matryoshka_2d": "aligns the layers of every text, judged or not"}
SHARED = {"momentum_queue": "holds a query against the others too", **ALIGNED}
DIM = 16
ROWS = 4


class TwoLayers:
    """A dense encoder of token means, as far as a loss looks at it."""

    similarity = "cosine"
    layer_count = 2

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.module = torch.nn.Embedding(64, DIM)

    def tokenize(self, texts: Sequence[str], side: str) -> dict[str, Tensor]:
        rows = [[1, *(2 + int(word) for word in text.split()[1:])] for text in texts]
        ids = torch.tensor([row + [0] * (2 - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}

    def embed(self, features: Any, side: str) -> Tensor:
        mask = features["attention_mask"][..., None]
        made: Tensor = (self.module(features["input_ids"]) * mask).sum(1) / mask.sum(1)
        return made

    def embed_layers(self, features: Any, side: str, layers: Sequence[int]) -> Tensor:
        return torch.cat([self.embed(features, side) * layer for layer in layers], dim=1)


class Leaves(NamedTuple):
    """All that a value can depend on, by the number of a query or a document."""

    queries: Tensor
    documents: Tensor
    early_queries: Tensor
    early_documents: Tensor
    answered: Tensor
    logits: Tensor
    teacher: Tensor  # no leaf


def leaves(scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Leaves:
    torch.manual_seed(0)
    count = sum(len(e.documents) for e in EXAMPLES)

    def leaf(*shape: int) -> Tensor:
        return (torch.randn(*shape, dtype=torch.float64) * scale).to(dtype).requires_grad_()

    return Leaves(
        leaf(ROWS, DIM), leaf(count, DIM), leaf(ROWS, DIM), leaf(count, DIM), leaf(count, DIM),
        leaf(ROWS, count), torch.randn(ROWS, count, dtype=torch.float64).to(dtype),
    )  # fmt: skip


def _examples() -> list[Example]:
    made, number = [], 0
    for row, (positives, negatives) in enumerate([(1, 2), (2, 2), (1, 3), (1, 4)]):
        documents = [
            Text(str(n), f"text {n}") for n in range(number, number + positives + negatives)
        ]
        number += len(documents)
        labels = (1.0,) * positives + (0.0,) * negatives
        made.append(Example(Text(str(row), f"query {row}"), tuple(documents), labels))
    return made


EXAMPLES = _examples()


def turned(examples: Sequence[Example]) -> list[Example]:
    """The same examples in another order, negatives backwards and before the positives."""
    made = []
    for example in (examples[i] for i in (2, 0, 3, 1)):
        pairs = sorted(zip(example.labels, example.documents, strict=True), key=lambda p: p[0])
        negatives = [pair for pair in pairs if pair[0] <= 0][::-1]
        both = negatives + [pair for pair in pairs if pair[0] > 0]
        documents, labels = tuple(d for _, d in both), tuple(label for label, _ in both)
        made.append(replace(example, documents=documents, labels=labels))
    return made


@dataclass(frozen=True)
class Case:
    """A loss, and the batches it is for: ``matrix`` or ``groups`` (a cross-encoder's)."""

    name: str
    layout: str

    def loss(self, dtype: torch.dtype = torch.float64) -> Any:
        made = build({"type": self.name, **ARGUMENTS.get(self.name, {})}, LOSSES, where="loss")
        assert isinstance(made, LossBase)
        if self.layout == "matrix":
            made = made.bound_to("cosine")
        made.bind(TwoLayers(), 0)
        for parameter in made.parameters():
            if parameter.dim():
                parameter.data = parameter.data.to(dtype)
        return made

    @property
    def over_only(self) -> bool:
        return not from_scores(self.loss())


def takes_scores(loss: LossBase) -> bool:
    made = type(loss)
    own_value = made._value is not LossBase._value
    return own_value or made.__call__ is not LossBase.__call__


def from_scores(loss: Any) -> bool:
    """A score matrix is all it needs."""
    return takes_scores(loss) and not loss.texts


def _cases() -> list[Case]:
    made = []
    for name in LOSSES:
        loss = build({"type": name, **ARGUMENTS.get(name, {})}, LOSSES, where="loss")
        if loss.texts_alone:  # no queries: test_masked_language has its tests
            continue
        kinds = loss.encoders or ("dense", "cross_encoder")
        if from_scores(loss) or set(kinds) != {"cross_encoder"}:
            made.append(Case(name, "matrix"))
        if from_scores(loss) or set(kinds) == {"cross_encoder"}:
            made.append(Case(name, "groups"))
    return made


CASES = _cases()
each = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.layout}")


def laid_out(
    case: Case, loss: Any, examples: Sequence[Example], parts: Leaves, weights: Tensor | None
) -> VectorBatch:
    """The batch as the Trainer lays it out, a function of the leaves."""
    rows = torch.tensor([int(e.query.id) for e in examples])
    columns = torch.tensor([int(d.id) for e in examples for d in e.documents])
    owners = torch.tensor([row for row, e in enumerate(examples) for _ in e.documents])
    dtype = parts.logits.dtype
    own = owners[None, :] == torch.arange(len(examples))[:, None]
    pairs = parts.teacher[rows[:, None], columns].masked_fill(~own, torch.nan)
    if case.layout == "groups":
        targets = group_targets(examples)
        flat = parts.logits[rows[owners], columns]
        matrix = torch.zeros_like(targets.labels, dtype=dtype)
        matrix = matrix.masked_scatter(targets.places, flat)
        teacher = torch.full_like(matrix, torch.nan)
        teacher = teacher.masked_scatter(targets.places, parts.teacher[rows[owners], columns])
    else:
        targets = matrix_targets(examples, loss.negatives)
        matrix = parts.logits[rows[:, None], columns]
        teacher = pairs
    vectors = parts.queries[rows], parts.documents[columns]
    layers = loss.layers
    early = parts.early_queries[rows], parts.early_documents[columns]
    negatives = (torch.tensor([label for e in examples for label in e.labels]) <= 0).nonzero()[:, 0]
    encoder = TwoLayers()
    return VectorBatch(
        *vectors,
        labels=targets.labels.to(dtype),
        mask=targets.mask,
        positives=targets.positives,
        owners=owners,
        weights=None if weights is None else weights.to(dtype)[rows],
        teacher=teacher,
        cosine=case.layout == "matrix",
        layers=(vectors, early) if layers is not None and len(layers(0)) == 2 else (),
        answered=(negatives, parts.answered[columns[negatives]]),
        features={
            "query": encoder.tokenize([e.query.text for e in examples], "query"),
            "document": encoder.tokenize(
                [d.text for e in examples for d in e.documents], "document"
            ),
        },
        matrix=matrix if from_scores(loss) or case.layout == "groups" else None,
        ids={
            "query": tuple(e.query.id for e in examples),
            "document": tuple(d.id for e in examples for d in e.documents),
        },
    )


def evaluated(
    case: Case,
    parts: Leaves,
    *,
    examples: Sequence[Example] = EXAMPLES,
    weights: Tensor | None = None,
    change: Callable[[VectorBatch], VectorBatch] = lambda batch: batch,
) -> tuple[Tensor, list[Tensor]]:
    """A fresh loss's value, and its gradients for the leaves (zeros where it has none)."""
    loss = case.loss(parts.logits.dtype)
    batch = change(laid_out(case, loss, examples, parts, weights))
    if from_scores(loss):
        value = loss(batch.scores(), batch.labels, batch.mask, batch.weights, batch.teacher)
    else:
        value = loss.over(batch)
    assert value.shape == ()
    assert value.requires_grad
    found = torch.autograd.grad(value, parts[:-1], allow_unused=True)
    gradients = [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(parts[:-1], found, strict=True)
    ]
    return value, gradients


def same(one: tuple[Tensor, list[Tensor]], other: tuple[Tensor, list[Tensor]]) -> None:
    assert one[0].item() == pytest.approx(other[0].item(), abs=1e-6, rel=1e-6)
    for first, second in zip(one[1], other[1], strict=True):
        assert (first - second).abs().max() < 1e-6


@each
def test_value_is_finite_and_teaches(case: Case) -> None:
    value, gradients = evaluated(case, leaves())
    assert value.isfinite()
    assert any(gradient.any() for gradient in gradients)
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("name", LOSSES)
def test_signature(name: str) -> None:
    loss = build({"type": name, **ARGUMENTS.get(name, {})}, LOSSES, where="loss")
    if takes_scores(loss):
        names = list(inspect.signature(loss).parameters)
        assert names == ["scores", "labels", "mask", "weights", "teacher"]
    assert list(inspect.signature(loss.over).parameters) == ["batch"]
    assert takes_scores(loss) or type(loss).over is not LossBase.over
    assert loss.negatives in get_args(Negatives)
    kinds = loss.encoders or ("dense",)
    assert set(kinds) <= {"dense", "splade", "cross_encoder"}
    assert loss.similarity in ("auto", "cosine", "dot")
    for option in ("needs_teacher", "wants_answered", "same_side", "texts"):
        assert isinstance(getattr(loss, option), bool)
    assert inspect.getdoc(type(loss))


@each
def test_order_of_rows_and_columns_does_not_matter(case: Case) -> None:
    if case.name in DRAWN:
        pytest.skip(DRAWN[case.name])
    parts, weights = leaves(), torch.tensor([1.0, 0.5, 2.0, 1.5], dtype=torch.float64)
    there = evaluated(case, parts, weights=weights)
    same(there, evaluated(case, parts, weights=weights, examples=turned(EXAMPLES)))


@each
def test_masked_cells_are_not_seen(case: Case) -> None:
    if case.name in ALIGNED:
        pytest.skip(ALIGNED[case.name])
    hidden = int(EXAMPLES[1].documents[-1].id)  # a negative that nobody may count

    def masked(batch: VectorBatch) -> VectorBatch:
        mask = batch.mask.clone()
        if case.layout == "groups":
            mask[1, len(EXAMPLES[1].documents) - 1] = False
        else:
            mask[:, hidden] = False
        return replace(batch, mask=mask)

    parts = leaves()
    plain = evaluated(case, parts, change=masked)
    moved = leaves()
    with torch.no_grad():
        moved.documents[hidden] *= -3
        moved.logits[:, hidden] = 1e4
        moved.teacher[:, hidden] = -50
    same(plain, evaluated(case, moved, change=masked))
    for gradients in (plain[1], evaluated(case, moved, change=masked)[1]):
        assert not gradients[5][:, hidden].any()
        assert not gradients[1][hidden].any()


def without(batch: VectorBatch, row: int) -> VectorBatch:
    """The score matrix less one row; of interest to losses over scores only."""
    kept = torch.arange(len(batch.labels)) != row
    return replace(
        batch,
        labels=batch.labels[kept],
        mask=batch.mask[kept],
        weights=None if batch.weights is None else batch.weights[kept],
        teacher=None if batch.teacher is None else batch.teacher[kept],
        matrix=None if batch.matrix is None else batch.matrix[kept],
    )


@each
def test_empty_rows_contribute_nothing(case: Case) -> None:
    def emptied(batch: VectorBatch) -> VectorBatch:
        mask = batch.mask.clone()
        mask[2] = False
        return replace(batch, mask=mask)

    def nothing(batch: VectorBatch) -> VectorBatch:
        return replace(batch, mask=torch.zeros_like(batch.mask))

    parts = leaves()
    made = evaluated(case, parts, change=emptied)
    assert made[0].isfinite()
    assert not made[1][5][2].any()
    if case.name not in SHARED:
        assert not made[1][0][2].any()
    if not case.over_only:
        same(made, evaluated(case, parts, change=lambda batch: without(emptied(batch), 2)))
        value, gradients = evaluated(case, parts, change=nothing)
        assert value.item() == 0.0
        assert not any(gradient.any() for gradient in gradients)


@each
def test_a_weight_of_zero_drops_a_row(case: Case) -> None:
    parts, weights = leaves(), torch.tensor([1.0, 2.0, 0.0, 0.5], dtype=torch.float64)
    made = evaluated(case, parts, weights=weights)
    assert not made[1][5][2].any()
    assert not made[1][0][2].any() or case.name in SHARED
    if not case.over_only:
        dropped = evaluated(case, parts, weights=weights, change=lambda batch: without(batch, 2))
        same(made, dropped)
    nothing = evaluated(case, parts, weights=torch.zeros(ROWS, dtype=torch.float64))
    assert nothing[0].isfinite()
    assert all(gradient.isfinite().all() for gradient in nothing[1])


@each
def test_equal_weights_are_none(case: Case) -> None:
    parts = leaves()
    weights = torch.full((ROWS,), 3.0, dtype=torch.float64)
    same(evaluated(case, parts), evaluated(case, parts, weights=weights))


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_scores_have_finite_gradients(case: Case, dtype: torch.dtype) -> None:
    for sign in (1.0, -1.0):
        parts = leaves(1e-3, dtype)
        with torch.no_grad():
            parts.logits.copy_(torch.where(parts.logits > 0, 1e4, -1e4) * sign)
        value, gradients = evaluated(case, parts)
        assert value.isfinite()
        assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "case", [c for c in CASES if not c.over_only], ids=lambda case: f"{case.name}-{case.layout}"
)
def test_half_precision_scores(case: Case, dtype: torch.dtype) -> None:
    value, gradients = evaluated(case, leaves(1.0, dtype))
    whole, _ = evaluated(case, leaves())
    assert value.item() == pytest.approx(whole.item(), rel=0.15, abs=0.1)
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.layout == "groups"], ids=lambda case: case.name
)
def test_padding_of_groups_is_not_seen(case: Case) -> None:
    parts = leaves()
    places = group_targets(EXAMPLES).places

    def filled(batch: VectorBatch) -> VectorBatch:
        matrix = batch.scores().masked_fill(~places, 77.0)
        labels = batch.labels.masked_fill(~places, 1.0)
        return replace(batch, matrix=matrix, labels=labels)

    same(evaluated(case, parts), evaluated(case, parts, change=filled))
