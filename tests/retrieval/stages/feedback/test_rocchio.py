"""Moved dense queries against straight-line float64 formulas, and the cases they reduce to."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sluice.retrieval.stages.feedback.dense import averaged, rocchio

RNG = np.random.default_rng(3)
DOCUMENTS = RNG.normal(size=(9, 5)).astype(np.float32)
QUERIES = RNG.normal(size=(4, 5)).astype(np.float32)
NONE = np.full((4, 0), -1)


def unit(vector: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(vector)
    return vector / length if length else vector


def straight_line(
    query: np.ndarray, top: list[int], bottom: list[int], weights: tuple[float, ...], cosine: bool
) -> np.ndarray:
    scale = unit if cosine else np.asarray
    alpha, beta, gamma = weights
    moved = alpha * scale(query.astype(np.float64))
    if top:
        moved = moved + beta * np.mean(
            [scale(DOCUMENTS[d].astype(np.float64)) for d in top], axis=0
        )
    if bottom:
        low = [scale(DOCUMENTS[d].astype(np.float64)) for d in bottom]
        moved = moved - gamma * np.mean(low, axis=0)
    return scale(moved)


PLACES = st.lists(st.integers(-1, 8), min_size=3, max_size=3)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(PLACES, min_size=4, max_size=4),
    st.lists(PLACES, min_size=4, max_size=4),
    st.tuples(*[st.floats(0.1, 2)] * 3),
    st.booleans(),
)
def test_rocchio_is_the_straight_line_sum(
    top: list[list[int]], bottom: list[list[int]], weights: tuple[float, ...], cosine: bool
) -> None:
    alpha, beta, gamma = weights
    moved = rocchio(
        QUERIES, DOCUMENTS, np.array(top), np.array(bottom),
        alpha=alpha, beta=beta, gamma=gamma, unit=cosine,
    )  # fmt: skip
    assert moved.dtype == np.float64
    for line, query in enumerate(QUERIES):
        high, low = ([d for d in each[line] if d >= 0] for each in (top, bottom))
        expected = straight_line(query, high, low, weights, cosine)
        if not high and not low:
            expected = query
        np.testing.assert_allclose(moved[line], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_average_is_rocchio_with_its_weights(k: int, cosine: bool) -> None:
    top = np.array([RNG.permutation(9)[:k] for _ in QUERIES])
    weights = {"alpha": 1 / (k + 1), "beta": k / (k + 1), "gamma": 0.0}
    expected = rocchio(QUERIES, DOCUMENTS, top, NONE, **weights, unit=cosine)
    found = averaged(QUERIES, DOCUMENTS, top, unit=cosine)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    if not cosine:
        stacked = [np.vstack([q[None], DOCUMENTS[t]]) for q, t in zip(QUERIES, top, strict=True)]
        means = [rows.astype(np.float64).mean(axis=0) for rows in stacked]
        np.testing.assert_allclose(found, means, rtol=1e-12)


def test_what_no_document_moves_stays_bit_for_bit() -> None:
    top, nowhere = np.zeros((4, 2), int), np.full((4, 2), -1)
    for cosine in (False, True):
        for moved in (
            averaged(QUERIES, DOCUMENTS, NONE, unit=cosine),
            averaged(QUERIES, DOCUMENTS, nowhere, unit=cosine),
            rocchio(QUERIES, DOCUMENTS, top, top, alpha=0.4, beta=0.0, gamma=0.0, unit=cosine),
            rocchio(
                QUERIES, DOCUMENTS, nowhere, nowhere, alpha=0.4, beta=1.0, gamma=1.0, unit=cosine
            ),
        ):
            assert np.array_equal(moved.astype(np.float32), QUERIES)


def test_a_cosine_of_nothing_leaves_the_query() -> None:
    query = DOCUMENTS[:1]
    away = rocchio(
        query, DOCUMENTS, np.array([[-1]]), np.array([[0]]),
        alpha=1.0, beta=0.0, gamma=1.0, unit=True,
    )  # fmt: skip
    assert np.array_equal(away.astype(np.float32), query)


def test_no_queries() -> None:
    none = np.zeros((0, 5), np.float32)
    assert averaged(none, DOCUMENTS, np.zeros((0, 3), int)).shape == (0, 5)
