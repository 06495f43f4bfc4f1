"""Checks that a loss is a scalar whose gradient is right, and counts what it may count."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Final, get_args

import torch

from sluice.encoders.table import Learnt as Form
from sluice.retrieval.testing.loss_batches import (
    EXAMPLES,
    ROWS,
    Leaves,
    LossCase,
    Value,
    layouts,
    leaves,
    padded_elsewhere,
    takes_scores,
    turned,
    without_row,
)
from sluice.retrieval.testing.rules import expect, verify
from sluice.training.batches.vector_batch import Negatives, VectorBatch
from sluice.training.losses.base import HOOKS, Want, as_loss, writes

STEP = 1e-6  # of finite differences


def check_loss(make: Callable[[], Any], *, skip: Collection[str] = ()) -> None:
    """Raise ``BrokenRule`` unless the losses that ``make`` returns keep every rule of a loss.

    ``make`` is called often and returns a new loss: a class, or a lambda. It is checked on batches
    of four queries in float64, on those of bi-encoders and of cross-encoders where it is for both.
    ``skip`` names rules that do not apply: ``gradient`` for a loss that stops gradients by design,
    ``order`` for one that draws by the place in the batch.
    """
    loss = as_loss(make())
    own = getattr(loss, "loss", loss) if type(loss).__name__ == "Adapted" else loss
    name = f"loss {getattr(own, '__name__', type(own).__name__)}"
    # It learns from texts without vectors, or from those inside an encoder: no batch is for it.
    if "texts_alone" in loss.wants or loss.forms in (("heads",), ("codes",)) or writes(loss):
        verify(name, [hooks], LossCase(make, "matrix"), ())
        return
    for layout in layouts(loss):
        verify(f"{name} ({layout})", (hooks, *RULES), LossCase(make, layout), skip)


def hooks(case: LossCase) -> None:
    """Every hook has the type that LossBase declares."""
    loss = case.loss()
    if takes_scores(loss) and not hasattr(loss, "loss"):
        names = list(inspect.signature(loss).parameters)
        wanted = ["scores", "labels", "mask", "weights", "teacher"]
        expect(names == wanted, f"__call__ takes {', '.join(names)}; expected {', '.join(wanted)}")
    kinds = {
        "forms": bool(loss.forms) and set(loss.forms) <= set(get_args(Form)),
        "negatives": loss.negatives in get_args(Negatives),
        "similarity": loss.similarity in ("auto", "cosine", "dot"),
        "ranks": loss.ranks in (None, "columns", "scores"),
        "layers": loss.layers is None or callable(loss.layers),
        "learning_rate": loss.learning_rate is None or loss.learning_rate > 0,
        "wants": set(loss.wants) <= set(get_args(Want)),
        "noted": isinstance(loss.noted, str),
    }
    flags = (
        "same_side", "logq", "needs_teacher",
    )  # fmt: skip
    kinds.update({name: isinstance(getattr(loss, name), bool) for name in flags})
    for name, holds in kinds.items():
        expect(holds, f"{name} is {getattr(loss, name)!r}")
    for name in set(HOOKS) - set(kinds):
        expect(callable(getattr(loss, name)), f"{name} is {getattr(loss, name)!r}, not a method")
    parameters = list(loss.parameters())
    expect(
        all(isinstance(each, torch.nn.Parameter) for each in parameters),
        f"parameters() has {[type(each).__name__ for each in parameters]}",
    )


def scalar(case: LossCase) -> None:
    """The loss is one finite number, with finite gradients, of which some are not zero."""
    value = case.value(leaves())
    expect(isinstance(value, torch.Tensor), f"it returned a {type(value).__name__}")
    expect(value.shape == (), f"its shape is {tuple(value.shape)}, expected a scalar")
    expect(value.requires_grad, "it has no gradient: something in it was detached")
    value, gradients = case.evaluated(leaves())
    expect(value.isfinite(), f"it is {value.item()}")
    expect(all(g.isfinite().all() for g in gradients), "a gradient is not finite")
    expect(any(g.any() for g in gradients), "all gradients are zero")


def gradient(case: LossCase) -> None:
    """The gradient equals finite differences, in float64."""
    parts = leaves()
    _, gradients = case.evaluated(parts)
    generator = torch.Generator().manual_seed(3)
    for draw in range(3):
        moves = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parts[:-1]]
        ends = []
        for sign in (STEP, -STEP):
            moved = [
                (leaf + sign * move).detach().requires_grad_()
                for leaf, move in zip(parts[:-1], moves, strict=True)
            ]
            ends.append(case.value(Leaves._make([*moved, parts.teacher])).item())
        slope = (ends[0] - ends[1]) / (2 * STEP)
        own = sum((g * move).sum().item() for g, move in zip(gradients, moves, strict=True))
        expect(
            abs(slope - own) <= 1e-5 * max(1.0, abs(slope)),
            f"direction {draw}: the gradient says {own:.8g}, finite differences {slope:.8g}",
        )


def again(case: LossCase) -> None:
    """A new loss on the same batch has the same value and gradient."""

    def reseeded(batch: VectorBatch) -> VectorBatch:
        torch.manual_seed(1)  # what it draws comes from the seed it was bound with
        return batch

    _same(case.evaluated(leaves()), case.evaluated(leaves(), change=reseeded), "the second time")


def order(case: LossCase) -> None:
    """The order of rows and columns does not matter."""
    parts, weights = leaves(), torch.tensor([1.0, 0.5, 2.0, 1.5], dtype=torch.float64)
    there = case.evaluated(parts, weights=weights)
    back = case.evaluated(parts, weights=weights, examples=turned(EXAMPLES))
    _same(there, back, "in another order")


def mask(case: LossCase) -> None:
    """Masked cells are not seen, whatever they hold."""
    hidden = int(EXAMPLES[1].documents[-1].id)  # a negative that nobody may count

    def masked(batch: VectorBatch) -> VectorBatch:
        cells = batch.mask.clone()
        if case.layout == "groups":
            cells[1, len(EXAMPLES[1].documents) - 1] = False
        else:
            cells[:, hidden] = False
        return replace(batch, mask=cells)

    moved = leaves()
    with torch.no_grad():
        moved.documents[hidden] *= -3
        moved.logits[:, hidden] = 1e4
        moved.teacher[:, hidden] = -50
    plain, other = case.evaluated(leaves(), change=masked), case.evaluated(moved, change=masked)
    _same(plain, other, "with other values in the masked cells")
    for _, gradients in (plain, other):
        expect(not gradients[5][:, hidden].any(), "the scores of masked cells have a gradient")
        expect(not gradients[1][hidden].any(), "a masked document's vector has a gradient")


def empty_rows(case: LossCase) -> None:
    """A row without cells adds nothing, and no cells at all give 0."""

    def emptied(batch: VectorBatch) -> VectorBatch:
        cells = batch.mask.clone()
        cells[2] = False
        return replace(batch, mask=cells)

    def nothing(batch: VectorBatch) -> VectorBatch:
        return replace(batch, mask=torch.zeros_like(batch.mask))

    value = case.evaluated(leaves(), change=emptied)
    expect(value[0].isfinite(), f"with an empty row it is {value[0].item()}")
    expect(not value[1][5][2].any(), "the empty row's scores have a gradient")
    if case.of_scores:
        less = case.evaluated(leaves(), change=lambda batch: without_row(emptied(batch), 2))
        _same(value, less, "without the row that is empty")
        none, gradients = case.evaluated(leaves(), change=nothing)
        expect(none.item() == 0.0, f"with every cell masked it is {none.item()}")
        expect(not any(g.any() for g in gradients), "with every cell masked a gradient is not 0")


def weights(case: LossCase) -> None:
    """Equal weights count as none, and a weight of 0 drops its row."""
    equal = torch.full((ROWS,), 3.0, dtype=torch.float64)
    _same(case.evaluated(leaves()), case.evaluated(leaves(), weights=equal), "with equal weights")
    some = torch.tensor([1.0, 2.0, 0.0, 0.5], dtype=torch.float64)
    value = case.evaluated(leaves(), weights=some)
    expect(not value[1][5][2].any(), "the scores of a row of weight 0 have a gradient")
    if case.of_scores:
        dropped = case.evaluated(leaves(), weights=some, change=lambda batch: without_row(batch, 2))
        _same(value, dropped, "without the row of weight 0")
    none = case.evaluated(leaves(), weights=torch.zeros(ROWS, dtype=torch.float64))
    expect(none[0].isfinite(), f"with all weights 0 it is {none[0].item()}")
    expect(all(g.isfinite().all() for g in none[1]), "with all weights 0 a gradient is not finite")


def row_alone(case: LossCase) -> None:
    """The vector of a query whose row is empty, or has weight 0, has no gradient."""

    def emptied(batch: VectorBatch) -> VectorBatch:
        cells = batch.mask.clone()
        cells[2] = False
        return replace(batch, mask=cells)

    some = torch.tensor([1.0, 2.0, 0.0, 0.5], dtype=torch.float64)
    for what, value in (
        ("an empty row", case.evaluated(leaves(), change=emptied)),
        ("a row of weight 0", case.evaluated(leaves(), weights=some)),
    ):
        expect(not value[1][0][2].any(), f"the query of {what} has a gradient")


def extreme_scores(case: LossCase) -> None:
    """Scores of 10,000 give a finite value and finite gradients."""
    for dtype in (torch.float32, torch.float64):
        for sign in (1.0, -1.0):
            parts = leaves(1e-3, dtype)
            with torch.no_grad():
                parts.logits.copy_(torch.where(parts.logits > 0, 1e4, -1e4) * sign)
            value, gradients = case.evaluated(parts)
            expect(value.isfinite(), f"{dtype}: it is {value.item()}")
            finite = all(g.isfinite().all() for g in gradients)
            expect(finite, f"{dtype}: a gradient is not finite")


def half_precision(case: LossCase) -> None:
    """Scores in half precision give about the same value."""
    if not case.of_scores:
        return
    full = case.value(leaves()).item()
    for dtype in (torch.bfloat16, torch.float16):
        value, gradients = case.evaluated(leaves(1.0, dtype))
        near = abs(value.item() - full) <= max(0.1, 0.15 * abs(full))
        expect(near, f"{dtype}: {value.item()}, {full} in float64")
        finite = all(g.isfinite().all() for g in gradients)
        expect(finite, f"{dtype}: a gradient is not finite")


def padding(case: LossCase) -> None:
    """What a group is padded with is not seen."""
    if case.layout == "groups":
        filled = case.evaluated(leaves(), change=padded_elsewhere)
        _same(case.evaluated(leaves()), filled, "with other padding")


def state(case: LossCase) -> None:
    """A checkpoint's state is restored as it was, and notes are numbers."""
    loss, other = case.loss(), case.loss()
    loss.over(case.batch(loss, EXAMPLES, leaves(), None))
    loss.advance(1)
    kept = loss.state()
    for name, tensor in kept.items():
        expect(isinstance(tensor, torch.Tensor), f"state()[{name!r}] is {tensor!r}")
    other.restore({name: tensor.clone() for name, tensor in kept.items()})
    for name, tensor in other.state().items():
        expect(torch.equal(tensor, kept[name]), f"state()[{name!r}] is another after restore")
    for name, number in loss.notes().items():
        expect(isinstance(number, int | float), f"notes()[{name!r}] is {number!r}")


RULES: Final = (
    scalar, gradient, again, order, mask, empty_rows, weights, row_alone, extreme_scores,
    half_precision, padding, state,
)  # fmt: skip


def _same(one: Value, other: Value, what: str) -> None:
    first, second = one[0].item(), other[0].item()
    expect(abs(first - second) <= 1e-6 * max(1.0, abs(first)), f"it is {first}, {second} {what}")
    names = Leaves._fields
    for name, left, right in zip(names, one[1], other[1], strict=False):
        off = (left - right).abs().max().item()
        expect(off < 1e-6, f"the gradient of the {name} differs by {off:.3g} {what}")
