"""Simplex: corners, classes and cross-entropy against plain float64 formulas."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from vector_batches import examples, made, random_batch

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.distillation.scores import Simplex, clusters, corners_in, simplex


class Eight:
    dim = 8


def bound(vectors: np.ndarray | None = None, **settings: Any) -> Simplex:
    loss = Simplex(**settings)
    loss.bind(Eight(), 0)
    if vectors is not None:
        loss.bind_teacher(lambda: vectors)
    return loss


def taught(**changes: Any) -> VectorBatch:
    batch = random_batch(examples(3, negatives=1))
    torch.manual_seed(9)
    goals = torch.randn(3, 8, dtype=torch.float64), torch.randn(6, 8, dtype=torch.float64)
    return replace(batch, teacher_vectors=goals, **changes)


@pytest.mark.parametrize("corners", [2, 3, 9, 385])
def test_corners_are_equally_far_from_each_other(corners: int) -> None:
    points = simplex(corners).astype(np.float64)
    expected = np.full((corners, corners), -1 / (corners - 1))
    np.fill_diagonal(expected, 1.0)
    assert points.shape == (corners, corners - 1)
    np.testing.assert_allclose(points @ points.T, expected, atol=1e-6)
    np.testing.assert_allclose(points.sum(axis=0), 0.0, atol=1e-5)


@pytest.mark.parametrize("sides", ["both", "query", "document"])
@pytest.mark.parametrize("weights", [None, [1.0, 2.5, 0.0]])
def test_the_formula(sides: Any, weights: list[float] | None) -> None:
    batch = taught(weights=None if weights is None else torch.tensor(weights))
    assert batch.teacher_vectors is not None
    corners = simplex(9).tolist()
    rows = []
    if sides != "document":
        rows += list(zip(batch.queries.tolist(), batch.teacher_vectors[0].tolist(),
                         weights or [1.0] * 3, strict=True))  # fmt: skip
    if sides != "query":
        owned = [(weights or [1.0] * 3)[owner] for owner in batch.owners.tolist()]
        rows += list(zip(batch.documents.tolist(), batch.teacher_vectors[1].tolist(), owned,
                         strict=True))  # fmt: skip
    total = 0.0
    for own, goal, weight in rows:
        dots = [sum(a * b for a, b in zip(goal, corner, strict=True)) for corner in corners]
        right = dots.index(max(dots))
        logits = [
            sum(a * b for a, b in zip(own, corner, strict=True)) / math.hypot(*own) / 0.2
            for corner in corners
        ]
        total += weight * (math.log(sum(map(math.exp, logits))) - logits[right])
    expected = total / sum(weight for *_, weight in rows)
    found = bound(temperature=0.2, sides=sides).over(batch).item()
    assert found == pytest.approx(expected, rel=1e-10)


def test_the_gradient() -> None:
    batch, loss = taught(), bound(temperature=0.5)

    def value(queries: Tensor, documents: Tensor) -> Tensor:
        return loss.over(batch.with_vectors(queries, documents))

    assert torch.autograd.gradcheck(value, (batch.queries, batch.documents))


def test_clusters_are_k_means_from_the_corners() -> None:
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(200, 8)).astype(np.float32) + 2.0
    units = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    centres = simplex(9).astype(np.float64)
    for _ in range(3):
        nearest = [max(range(9), key=lambda k: float(unit @ centres[k])) for unit in units]
        for k in range(9):
            own = units[[row for row, near in enumerate(nearest) if near == k]]
            if len(own):
                centres[k] = own.sum(axis=0) / np.linalg.norm(own.sum(axis=0))
    mean, found = clusters(vectors, simplex(9), 3)
    np.testing.assert_allclose(found, centres, atol=1e-5)
    np.testing.assert_allclose(mean[0], vectors.mean(axis=0), atol=1e-5)
    loss = bound(vectors, rounds=3)
    expected = (units @ centres.T).argmax(axis=1)
    assert loss.classes_of(torch.from_numpy(vectors)).tolist() == expected.tolist()


def test_a_teacher_at_the_corners_keeps_its_classes_and_others_their_slots() -> None:
    corners = simplex(9)
    rng = np.random.default_rng(4)
    rows = np.repeat(np.arange(6), 20)  # three corners have no text yet
    vectors = corners[rows] + 0.05 * rng.normal(size=(120, 8)).astype(np.float32)
    loss = bound(vectors.astype(np.float32))
    assert loss.classes_of(torch.from_numpy(vectors)).tolist() == rows.tolist()
    _, centres = clusters(vectors, corners, 10)
    np.testing.assert_array_equal(centres[6:], corners[6:])
    one = clusters(vectors[:1], corners, 10)  # a text that is the mean: no direction, no change
    np.testing.assert_array_equal(one[1], corners)


def test_it_goes_with_any_other_loss_and_tells_them_the_teacher() -> None:
    total = made("sum", losses=[{"type": "simplex"}, {"type": "hoc"}, {"type": "info_nce"}])
    assert (total.negatives, total.needs_teacher) == ("all", False)
    assert total.wants == {"teacher_vectors"}
    total.bind(Eight(), 0)
    asked = []

    def vectors() -> np.ndarray:
        asked.append(1)
        return np.eye(8, dtype=np.float32)

    total.bind_teacher(vectors)
    assert asked == [1]  # by the only member that clusters
    assert not np.allclose(total.losses[0]._bound.centres.numpy(), simplex(9))


def test_what_does_not_fit_is_said() -> None:
    batch = taught()
    with pytest.raises(DataError, match="simplex: the batch has no teacher's vectors; name a den"):
        bound().over(replace(batch, teacher_vectors=None))
    with pytest.raises(ConfigError, match=r"8 dimensions and the teacher's 4; set encoder.proj"):
        bound(np.ones((3, 4), np.float32))
    with pytest.raises(ConfigError, match="corners have 8 dimensions and these vectors 4; put it"):
        bound().over(batch.with_vectors(batch.queries[:, :4], batch.documents[:, :4]))


@pytest.mark.parametrize(("slots", "dim"), [(2, 8), (5, 8), (9, 8), (40, 8), (300, 64)])
def test_slots_of_any_number(slots: int, dim: int) -> None:
    points = corners_in(slots, dim).astype(np.float64)
    assert points.shape == (slots, dim)
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1.0, atol=1e-6)
    cosines = (points @ points.T)[~np.eye(slots, dtype=bool)]
    if slots <= dim + 1:
        np.testing.assert_allclose(cosines, -1 / (slots - 1), atol=1e-6)
    else:
        assert abs(cosines.mean() + 1 / (slots - 1)) < 0.02
        assert cosines.std() < 1.3 / np.sqrt(dim)
        assert cosines.max() < 0.999  # no two are one
    np.testing.assert_array_equal(corners_in(slots, dim), corners_in(slots, dim))


def test_classes_added_later_keep_the_old_ones() -> None:
    """Four classes now, six later: free slots push texts away, and have none before."""
    corners = corners_in(20, 8)
    rng = np.random.default_rng(4)
    rows = np.repeat(np.arange(6), 20)
    vectors = (corners[rows] + 0.01 * rng.normal(size=(120, 8))).astype(np.float32)
    old = bound(vectors[:80], slots=20, classes=4)
    assert old.classes_of(torch.from_numpy(vectors)).max() == 3
    later = bound(vectors, slots=20, classes=6)
    found = later.classes_of(torch.from_numpy(vectors))
    assert found.tolist() == rows.tolist()
    assert torch.equal(found[:80], old.classes_of(torch.from_numpy(vectors[:80])))
    batch = taught()
    assert batch.teacher_vectors is not None
    value = 0.0
    old = bound(vectors[:80], slots=20, classes=4, sides="query")
    classes = old.classes_of(batch.teacher_vectors[0]).tolist()
    for vector, own in zip(batch.queries.detach().double().numpy(), classes, strict=True):
        logits = corners.astype(np.float64) @ vector / np.linalg.norm(vector) / 0.05
        value += float(np.log(np.exp(logits).sum()) - logits[own]) / len(batch.queries)
    assert old.over(batch).item() == pytest.approx(value, rel=1e-5)
    with pytest.raises(ConfigError, match=r"simplex\.classes: 5, and there are 4 slots"):
        made("simplex", slots=4, classes=5)
    with pytest.raises(ConfigError, match="set slots: 50 or more"):
        bound(vectors, classes=50)
