"""AnglE against complex numbers written out, in float64."""

from __future__ import annotations

import cmath
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from vector_batches import examples, gradients, made, random_batch

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.losses.own.angle import AnglE, angles


def straight_angle(query: list[float], document: list[float]) -> float:
    """|Re + Im| of the sum of q conj(d), both of length 1."""
    half = len(query) // 2

    def complex_of(vector: list[float]) -> list[complex]:
        length = math.sqrt(sum(value * value for value in vector))
        return [complex(vector[i], vector[half + i]) / length for i in range(half)]

    total = sum(
        (q * d.conjugate() for q, d in zip(complex_of(query), complex_of(document), strict=True)),
        start=0j,
    )
    return abs(total.real + total.imag)


def straight(
    batch: VectorBatch, scores: list[list[float]], t: float, weights: list[float] | None = None
) -> float:
    width = len(scores[0])
    cells = [
        (scores[row][column], float(batch.labels[row, column]), weights[row] if weights else 1.0)
        for row in range(len(scores))
        for column in range(width)
        if batch.mask[row, column]
    ]
    total = sum(
        u * v * math.exp((low - high) / t)
        for high, better, u in cells
        for low, worse, v in cells
        if better > worse
    )
    return math.log1p(total)


def both(batch: VectorBatch) -> tuple[list[list[float]], list[list[float]]]:
    queries, documents = batch.queries.tolist(), batch.documents.tolist()
    turned = [[straight_angle(q, d) for d in documents] for q in queries]
    cosines = torch.nn.functional.cosine_similarity(
        batch.queries[:, None], batch.documents[None], dim=2
    )
    return turned, cosines.tolist()


def graded(seed: int = 3) -> VectorBatch:
    batch = random_batch(
        examples(3, negatives=2, positives=2), seed=seed, options={"negatives": "own"}
    )
    labels = batch.labels.clone()
    labels[0, 0] = 2.0  # three grades
    return replace(batch, labels=labels)


@pytest.mark.parametrize("cosine_weight", [0.0, 0.7])
@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_the_formula(cosine_weight: float, temperature: float) -> None:
    batch = graded()
    turned, cosines = both(batch)
    expected = straight(batch, turned, temperature)
    expected += cosine_weight * straight(batch, cosines, temperature)
    found = AnglE(temperature=temperature, cosine_weight=cosine_weight).over(batch)
    assert found.item() == pytest.approx(expected, rel=1e-10)


def test_weights_relative_to_their_mean() -> None:
    batch = replace(graded(), weights=torch.tensor([1.0, 3.0, 0.0]))
    turned, _ = both(batch)
    expected = straight(batch, turned, 0.5, [0.5, 1.5, 0.0])
    assert AnglE(0.5).over(batch).item() == pytest.approx(expected, rel=1e-6)
    none = replace(batch, weights=torch.zeros(3))
    assert AnglE(0.5).over(none).item() == 0.0


def test_the_gradient() -> None:
    batch = graded(5)

    def value(queries: Tensor, documents: Tensor) -> Tensor:
        return AnglE(0.5, cosine_weight=0.3).over(batch.with_vectors(queries, documents))

    assert torch.autograd.gradcheck(value, (batch.queries, batch.documents))


def test_the_angle_is_that_of_complex_division() -> None:
    """The sum of real and imaginary parts of q / d, scaled by their lengths."""
    for degrees in (0, 30, 45, 80, 135):
        turn = cmath.exp(1j * math.radians(degrees))
        q = torch.tensor([[turn.real, turn.imag]], dtype=torch.float64)
        d = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        assert angles(q, d).item() == pytest.approx(abs(turn.real + turn.imag))


def test_it_has_a_slope_where_the_cosine_has_none() -> None:
    torch.manual_seed(0)
    query = torch.nn.functional.normalize(torch.randn(1, 8, dtype=torch.float64), dim=1)
    query.requires_grad_()
    unit = torch.nn.functional.normalize(query, dim=1)
    document = query.detach().clone()
    (slope,) = gradients(angles(unit, document).sum(), query)
    (flat,) = gradients((unit @ document.T).sum(), query)
    assert flat.abs().max() < 1e-12
    assert slope.abs().max() > 0.1


def test_nothing_to_compare_is_zero_and_one_pair_is_a_softplus() -> None:
    alone = random_batch(examples(2))
    own = replace(alone, mask=torch.eye(2).bool())
    assert AnglE().over(own).item() == 0.0
    nothing = AnglE().over(replace(alone, mask=torch.zeros(2, 2).bool()))
    assert nothing.item() == 0.0
    nothing.backward()
    pair = random_batch(examples(1, negatives=1))
    ((high, low),), _ = both(pair)
    assert AnglE(0.5).over(pair).item() == pytest.approx(math.log1p(math.exp((low - high) / 0.5)))


def test_ties_cost_log_one_plus_pairs() -> None:
    batch = random_batch(examples(1, negatives=3))
    same = batch.documents[:1].detach().expand(4, -1)
    tied = batch.with_vectors(batch.queries, same)
    assert AnglE().over(tied).item() == pytest.approx(math.log(4))


def test_other_queries_documents_count_when_asked() -> None:
    batch = random_batch(examples(3, negatives=1), options={"negatives": "all"})
    turned, _ = both(batch)
    assert made("angle", negatives="all").negatives == "all"
    assert AnglE(0.5).over(batch).item() == pytest.approx(straight(batch, turned, 0.5), rel=1e-10)


def test_the_published_objective_is_a_sum() -> None:
    spec = [{"type": "angle", "cosine_weight": 1.0, "negatives": "all"},
            {"type": "info_nce", "temperature": 0.05}]  # fmt: skip
    total = made("sum", losses=spec)
    batch = random_batch(examples(3, negatives=1))
    parts = AnglE(cosine_weight=1.0).over(batch) + InfoNCE(temperature=0.05).over(batch)
    assert total.over(batch).item() == pytest.approx(parts.item())


def test_bad_settings_and_widths() -> None:
    with pytest.raises(ConfigError, match="7 dimensions, expected an even number"):
        AnglE().over(random_batch(examples(2, negatives=1), dim=7))
    batch = random_batch(examples(2, negatives=1))
    with pytest.raises(ConfigError, match="the scores of this batch come from elsewhere"):
        AnglE().over(replace(batch, matrix=batch.scores()))
