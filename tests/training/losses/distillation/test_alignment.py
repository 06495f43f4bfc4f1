"""Embedding alignment against distances written out, in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from vector_batches import examples, made, random_batch

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.distillation.vectors import Alignment


def aligned(cosine: bool = True, **changes: Any) -> VectorBatch:
    batch = random_batch(examples(3, negatives=1), cosine=cosine)
    torch.manual_seed(9)
    goals = torch.randn(3, 8, dtype=torch.float64), torch.randn(6, 8, dtype=torch.float64)
    return replace(batch, teacher_vectors=goals, **changes)


def straight(batch: VectorBatch, distance: str, sides: str, weights: list[float]) -> float:
    assert batch.teacher_vectors is not None
    rows = []
    if sides != "document":
        rows += list(zip(batch.queries.tolist(), batch.teacher_vectors[0].tolist(), weights,
                         strict=True))  # fmt: skip
    if sides != "query":
        owned = [weights[owner] for owner in batch.owners.tolist()]
        rows += list(zip(batch.documents.tolist(), batch.teacher_vectors[1].tolist(), owned,
                         strict=True))  # fmt: skip
    total = 0.0
    for own, goal, weight in rows:
        if distance == "cosine":
            dot = sum(a * b for a, b in zip(own, goal, strict=True))
            gap = 1 - dot / (math.hypot(*own) * math.hypot(*goal))
        else:
            length = math.hypot(*own) if batch.cosine else 1.0
            gap = sum((a / length - b) ** 2 for a, b in zip(own, goal, strict=True))
        total += weight * gap
    return total / sum(weight for _, _, weight in rows)


@pytest.mark.parametrize("distance", ["l2", "cosine"])
@pytest.mark.parametrize("sides", ["both", "query", "document"])
@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.parametrize("weights", [None, [1.0, 2.5, 0.0]])
def test_the_formula(distance: Any, sides: Any, cosine: bool, weights: list[float] | None) -> None:
    batch = aligned(cosine, weights=None if weights is None else torch.tensor(weights))
    expected = straight(batch, distance, sides, weights or [1.0] * 3)
    assert Alignment(distance, sides).over(batch).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("distance", ["l2", "cosine"])
def test_the_gradient(distance: Any) -> None:
    batch = aligned()

    def value(queries: Tensor, documents: Tensor) -> Tensor:
        return Alignment(distance).over(batch.with_vectors(queries, documents))

    assert torch.autograd.gradcheck(value, (batch.queries, batch.documents))


@pytest.mark.parametrize("distance", ["l2", "cosine"])
def test_zero_where_the_student_is_the_teacher(distance: Any) -> None:
    batch = aligned(cosine=False)
    same = replace(batch, teacher_vectors=(batch.queries.detach(), batch.documents.detach()))
    assert Alignment(distance).over(same).item() == pytest.approx(0.0, abs=1e-12)


def test_labels_and_masks_do_not_count() -> None:
    batch = aligned()
    other = replace(batch, labels=1 - batch.labels, mask=torch.zeros_like(batch.mask))
    assert Alignment().over(other).item() == Alignment().over(batch).item()


def test_it_goes_with_any_other_loss() -> None:
    total = made("sum", losses=[{"type": "alignment"}, {"type": "info_nce", "negatives": "all"}])
    assert total.negatives == "all"
    assert total.wants == {"teacher_vectors"}
    assert not total.needs_teacher
    alone = made("sum", losses=[{"type": "alignment"}, {"type": "margin_mse"}])
    assert (alone.negatives, alone.needs_teacher) == ("own", True)


def test_what_does_not_fit_is_said() -> None:
    batch = aligned()
    with pytest.raises(DataError, match="has no teacher's vectors; name a dense encoder"):
        Alignment().over(replace(batch, teacher_vectors=None))
    goals = torch.randn(3, 4), torch.randn(6, 4)
    with pytest.raises(ConfigError, match=r"8 dimensions and the teacher's 4; set encoder.projec"):
        Alignment().over(replace(batch, teacher_vectors=goals))
    with pytest.raises(ConfigError, match=r"distance: 'dot'; expected one of 'l2', 'cosine'"):
        made("alignment", distance="dot")


def test_prefixes_are_aligned_with_the_teachers() -> None:
    batch = aligned()
    assert batch.teacher_vectors is not None
    found = made("matryoshka", dims=[8, 4], loss={"type": "alignment", "distance": "cosine"})
    short = batch.with_vectors(
        batch.queries[:, :4],
        batch.documents[:, :4],
        teacher_vectors=tuple(each[:, :4] for each in batch.teacher_vectors),
    )
    whole = Alignment("cosine").over(batch) + Alignment("cosine").over(short)
    assert found.over(batch).item() == pytest.approx(whole.item(), rel=1e-12)


@pytest.mark.parametrize("outer", ["mixing", "momentum_queue", "dse"])
def test_it_is_refused_where_the_outer_loss_adds_nothing(outer: str) -> None:
    with pytest.raises(ConfigError, match=f"{outer}.loss: learns a teacher's vectors, which"):
        made(outer, loss={"type": "alignment"})
