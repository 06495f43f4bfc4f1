"""Q-nets against plain formulas, one document at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.q_net import BLOCK, QNet, QNetShape, q_net_scores


def by_formula(flat: NDArray[np.float32], shape: QNetShape, document: NDArray[np.float32]) -> float:
    """One document, one number at a time, in float64."""
    dim = shape.dim
    values = [float(value) for value in flat]
    states = start = [float(value) for value in document]
    for layer in range(shape.hidden):
        weights, values = values[: dim * dim], values[dim * dim :]
        bias, values = values[:dim], values[dim:]
        made = [
            max(0.0, bias[j] + sum(states[i] * weights[i * dim + j] for i in range(dim)))
            for j in range(dim)
        ]
        mean = sum(made) / dim
        deviation = math.sqrt(sum((value - mean) ** 2 for value in made) / dim + 1e-5)
        made = [(value - mean) / deviation for value in made]
        last = layer == shape.hidden - 1
        states = made if last else [a + b for a, b in zip(made, states, strict=True)]
    score = sum(a * b for a, b in zip(states, values[:dim], strict=True))
    if shape.product:
        score += sum(a * b for a, b in zip(start, values[dim:], strict=True))
    return score


SHAPES = [QNetShape(5, hidden, product) for hidden in (0, 1, 2, 3) for product in (False, True)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scores_are_the_formula(shape: QNetShape) -> None:
    rng = np.random.default_rng(1)
    queries = rng.normal(size=(2, shape.width)).astype(np.float32)
    documents = rng.normal(size=(7, 5)).astype(np.float32)
    expected = [[by_formula(query, shape, each) for each in documents] for query in queries]
    assert np.allclose(q_net_scores(queries, documents), expected, atol=1e-4)


def test_a_q_net_is_a_sequential_of_torch() -> None:
    torch.manual_seed(2)
    one, two = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
    output = torch.nn.Linear(6, 1, bias=False)
    norm = torch.nn.LayerNorm(6, elementwise_affine=False)
    first = torch.nn.Sequential(one, torch.nn.ReLU(), norm)
    rest = torch.nn.Sequential(two, torch.nn.ReLU(), norm, output)
    documents = torch.randn(20, 6)
    with torch.no_grad():
        expected = rest(first(documents) + documents)[:, 0].numpy()
        parts = [one.weight.T, one.bias, two.weight.T, two.bias, output.weight]
        flat = torch.cat([part.reshape(-1) for part in parts]).numpy()
    assert np.allclose(q_net_scores(flat[None], documents.numpy())[0], expected, atol=1e-5)


def test_without_hidden_layers_it_is_an_inner_product() -> None:
    rng = np.random.default_rng(3)
    queries, documents = (rng.normal(size=(n, 9)).astype(np.float32) for n in (3, 8))
    expected = queries.astype(np.float64) @ documents.astype(np.float64).T
    assert np.allclose(q_net_scores(queries, documents), expected, atol=1e-6)


@pytest.mark.parametrize("shape", [QNetShape(8, 0), QNetShape(8, 2), QNetShape(24, 1, True)])
def test_a_score_is_the_same_bits_wherever_the_document_stands(shape: QNetShape) -> None:
    rng = np.random.default_rng(4)
    network = QNet(rng.normal(size=shape.width).astype(np.float32), shape)
    documents = rng.normal(size=(2 * BLOCK + 3, shape.dim)).astype(np.float32)
    scores = network.scores(documents)
    order = rng.permutation(len(documents))
    assert (network.scores(documents[order]) == scores[order]).all()
    for row in (0, BLOCK - 1, BLOCK, 2 * BLOCK + 2):
        assert network.scores(documents[row : row + 1])[0] == scores[row]
    assert network.scores(documents[:0]).shape == (0,)
    distances = np.abs(network.quick_scores(documents) - scores)
    assert distances.max() <= network.margin / 10


@pytest.mark.parametrize("shape", [*SHAPES, QNetShape(1, 0), QNetShape(1, 3, True)], ids=str)
def test_a_width_has_one_shape(shape: QNetShape) -> None:
    assert QNetShape.from_widths(shape.width, shape.dim) == shape


@pytest.mark.parametrize("width", [1, 4, 6, 11, 36, 41, 76])
def test_other_widths_are_refused(width: int) -> None:
    with pytest.raises(DataError, match=rf"queries: {width} values, and no q-net for documents"):
        QNetShape.from_widths(width, 5)
